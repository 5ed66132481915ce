"""The ASGI application: pages, API, MCP and WebSockets."""

from __future__ import annotations

import os
import sys

from channels.routing import ProtocolTypeRouter
from daphne.ws_protocol import WebSocketProtocol
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.db import connections

from kandev.databases import limit_statement_time
from sessions_app.management.startup import refuse_incompatible_database_to_server, set_private_umask

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "kandev.settings")

WebSocketProtocol.closeHandshakeTimeout = 30.0
"""Seconds for a client to read why its socket is closed. The default of one second was too short for slow clients."""

STATEMENT_TIMEOUT_SECONDS = 30
"""Seconds after which PostgreSQL cancels a statement of a page; migrations and maintenance have no limit."""

set_private_umask()
http = get_asgi_application()
limit_statement_time(connections.settings["default"], STATEMENT_TIMEOUT_SECONDS)

from kandev.request_slots import RequestSlotsMiddleware  # noqa: E402
from kandev.web_server import TrustedProxiesMiddleware, apply_limits  # noqa: E402 - needs loaded apps
from sessions_app.hosts.heartbeats import beat_in_thread  # noqa: E402
from sessions_app.hosts.models import Role  # noqa: E402
from sessions_app.hosts.troubles import TroubleWatch  # noqa: E402
from sessions_app.management.preloading import load_later  # noqa: E402
from sessions_app.mcp_server.endpoint import McpEndpoint  # noqa: E402
from sessions_app.routing import websockets  # noqa: E402

apply_limits()
if "daphne.cli" in sys.modules:  # a server loads this module; tests load it before they have a database
    refuse_incompatible_database_to_server()
    from twisted.internet import reactor  # the server has chosen it

    from kandev import graceful_end

    graceful_end.install()
    load_later(for_web=True)

    end_beats = beat_in_thread(Role.WEB, TroubleWatch().look_if_due)
    reactor.addSystemEventTrigger("before", "shutdown", end_beats)  # type: ignore[arg-type]

application = TrustedProxiesMiddleware(
    RequestSlotsMiddleware(
        ProtocolTypeRouter({"http": McpEndpoint(http), "websocket": websockets}), settings.SESSION_COOKIE_NAME
    ),
    settings.KANDEV_TRUSTED_PROXIES,
)

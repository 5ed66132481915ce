"""The ASGI entry point that daphne serves: pages and API, and the WebSockets."""

from __future__ import annotations

import os

from channels.routing import ProtocolTypeRouter
from daphne.ws_protocol import WebSocketProtocol
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.db import connections

from kandev.databases import limit_statement_time
from kandev.middleware import TrustedProxiesMiddleware
from sessions_app.management.startup import set_private_umask

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "kandev.settings")

WebSocketProtocol.closeHandshakeTimeout = 30.0
"""Seconds in which whoever is sent away may read why; after the usual one, slow readers found the line dead instead."""

LONGEST_STATEMENT = 30
"""Seconds after which a page that asks too much of PostgreSQL ends; migrations and maintenance may take longer."""

set_private_umask()
http = get_asgi_application()
limit_statement_time(connections.settings["default"], LONGEST_STATEMENT)

from kandev import web_server_limits  # noqa: E402 - the apps must be loaded before
from sessions_app.routing import websockets  # noqa: E402

web_server_limits.apply_limits()

application = TrustedProxiesMiddleware(
    ProtocolTypeRouter({"http": http, "websocket": websockets}), settings.KANDEV_TRUSTED_PROXIES
)

"""The ASGI entry point that daphne serves: pages and API, and the WebSockets."""

from __future__ import annotations

import os

from channels.routing import ProtocolTypeRouter
from daphne.ws_protocol import WebSocketProtocol
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.db import connections

from kandev.databases import bound_statements
from kandev.proxies import TrustedProxies
from sessions_app.management.private_files import make_private

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "kandev.settings")

WebSocketProtocol.closeHandshakeTimeout = 30.0
"""Seconds in which whoever is sent away may read why; after the usual one, slow readers found the line dead instead."""

LONGEST_STATEMENT = 30
"""Seconds after which a page that asks too much of PostgreSQL ends; migrations and maintenance may take longer."""

make_private()
http = get_asgi_application()
bound_statements(connections.settings["default"], LONGEST_STATEMENT)

from kandev import web_limits  # noqa: E402 - the apps must be loaded before
from sessions_app.routing import websockets  # noqa: E402

web_limits.apply()

application = TrustedProxies(
    ProtocolTypeRouter({"http": http, "websocket": websockets}), settings.KANDEV_TRUSTED_PROXIES
)

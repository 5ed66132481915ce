"""The ASGI entry point that daphne serves: pages and API, and the WebSockets."""

from __future__ import annotations

import os

from channels.routing import ProtocolTypeRouter
from daphne.ws_protocol import WebSocketProtocol
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "kandev.settings")

WebSocketProtocol.closeHandshakeTimeout = 30.0
"""Seconds in which whoever is sent away may read why; after the usual one, slow readers found the line dead instead."""

http = get_asgi_application()

from sessions_app.routing import websockets  # noqa: E402 - the apps must be loaded before

application = ProtocolTypeRouter({"http": http, "websocket": websockets})

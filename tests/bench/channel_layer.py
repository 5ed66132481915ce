"""A comparison for the fan-out: Channels consumers, woken by ``group_send`` through the in-memory layer."""

from __future__ import annotations

from typing import Any

import django
from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings

from tests.bench.bare_fanout import FRAME

GROUP = "everybody"

settings.configure(
    SECRET_KEY="of a bench",
    CHANNEL_LAYERS={"default": {"BACKEND": "channels.layers.InMemoryChannelLayer", "CONFIG": {"capacity": 1000}}},
)
django.setup()


class Listener(AsyncWebsocketConsumer):  # type: ignore[misc]
    """One socket: each message from it sends the frame to every client."""

    async def connect(self) -> None:
        await self.channel_layer.group_add(GROUP, self.channel_name)
        await self.accept()

    async def receive(self, **_: Any) -> None:
        """Send to the group."""
        await self.channel_layer.group_send(GROUP, {"type": "frame_sent", "text": FRAME})

    async def frame_sent(self, event: dict[str, Any]) -> None:
        """Forward the frame."""
        await self.send(text_data=event["text"])


application = Listener.as_asgi()

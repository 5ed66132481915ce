"""Other hosts by way of the channel layer, which is Redis' publish and subscribe where several processes serve.

What is published while Redis is away, or while nobody listens, is gone: a wake-up is worth nothing afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from redis.exceptions import RedisError

from sessions_app.models.pubsub.base import PubSub, Relay

GROUP: Final = "kandev_wakeups"


class RedisPubSub(PubSub):
    """A subscription of the relay's own, which the layer makes anew by itself when Redis comes back."""

    errors = (RedisError, OSError)

    def tell(self, here: str) -> None:
        """Publish once; a Redis that is away is missed at once, one that hangs within a second."""
        async_to_sync(_publish)(here)

    def serve(self, relay: Relay) -> None:
        """Subscribe, and publish when told to."""
        asyncio.run(_serve(relay))


async def _publish(here: str) -> None:
    await get_channel_layer().group_send(GROUP, {"type": "wake.up", "host": here})


async def _serve(relay: Relay) -> None:
    async with _subscribed() as channel:
        relay.hear()  # it was deaf until now
        hearing = asyncio.create_task(_receive(relay, channel))
        try:
            await _send_publications(relay)
        finally:
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)


@asynccontextmanager
async def _subscribed() -> AsyncIterator[str]:
    layer: Any = get_channel_layer()
    try:
        channel: str = await layer.new_channel()
        await layer.group_add(GROUP, channel)
        yield channel
    finally:
        await layer.flush()  # of this thread's loop alone


async def _receive(relay: Relay, channel: str) -> None:
    layer: Any = get_channel_layer()
    while True:
        message = await layer.receive(channel)
        relay.note(message["host"])


async def _send_publications(relay: Relay) -> None:
    """Each publication that fails breaks the line, which is then made anew."""
    loop = asyncio.get_running_loop()
    while True:
        await loop.sock_recv(relay.ear, 4096)
        if relay.is_over:
            return
        await _publish(relay.here)

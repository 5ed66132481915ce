"""Wake-ups over the channel layer, which is Redis pub/sub if several processes serve.

What is published while Redis is unavailable, or without a listener, is lost. That is harmless, because processes also
poll.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from redis.exceptions import RedisError

from sessions_app.kernel.pubsub import PubSub, Relay

GROUP: Final = "kandev_wakeups"


class RedisPubSub(PubSub):
    """The relay's own subscription; the layer restores it when Redis comes back."""

    errors = (RedisError, OSError)

    def tell(self, here: str) -> None:
        """Publish once; fails at once if Redis is unavailable, and within a second if it hangs."""
        async_to_sync(_publish)(here)

    def serve(self, relay: Relay) -> None:
        """Subscribe, and publish for the relay."""
        asyncio.run(_serve(relay))


async def _publish(here: str) -> None:
    await get_channel_layer().group_send(GROUP, {"type": "wake.up", "host": here})


async def _serve(relay: Relay) -> None:
    async with _subscribed() as channel:
        relay.connected()
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
        await layer.flush()  # closes the connections of this thread's event loop only


async def _receive(relay: Relay, channel: str) -> None:
    layer: Any = get_channel_layer()
    while True:
        message = await layer.receive(channel)
        relay.note(message["host"])


async def _send_publications(relay: Relay) -> None:
    """Publish for the relay; a failure breaks the connection, so that the relay reconnects."""
    loop = asyncio.get_running_loop()
    while True:
        await loop.sock_recv(relay.listener, 4096)
        if relay.is_over:
            return
        await _publish(relay.here)

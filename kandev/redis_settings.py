"""What the processes of all hosts share besides the database: Redis, for wake-ups and counts. Nothing is lost with it.

Nobody waits for it for long: one that is down is missed at once, one that hangs within a second.
"""

from __future__ import annotations

from typing import Any, Final

_CONNECTION_OPTIONS: Final[dict[str, Any]] = {
    "socket_connect_timeout": 1.0,
    "socket_timeout": 1.0,
    "socket_keepalive": True,
    "health_check_interval": 10,  # a connection that died without a word is noticed
}
_PREFIX: Final = "kandev"


def channel_layer_settings(url: str) -> dict[str, Any]:
    """``CHANNEL_LAYERS``: wake-ups between processes; without Redis within one process alone.

    Publish and subscribe, not the layer with queues: a wake-up that nobody hears must not be kept, and many
    receivers cost one command.
    """
    if not url:
        return {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
    from redis.asyncio.retry import Retry  # noqa: PLC0415  (only where there is a Redis: it is slow to import)
    from redis.backoff import NoBackoff  # noqa: PLC0415

    once = Retry(NoBackoff(), 0)
    return {
        "default": {
            "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
            "CONFIG": {"hosts": [{"address": url, "retry": once, **_CONNECTION_OPTIONS}], "prefix": _PREFIX},
        }
    }


def cache_settings(url: str) -> dict[str, Any]:
    """``CACHES``: counts of costly requests, for all processes or for each its own."""
    if not url:
        return {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
    from redis.backoff import NoBackoff  # noqa: PLC0415
    from redis.retry import Retry  # noqa: PLC0415

    options = {"retry": Retry(NoBackoff(), 0), **_CONNECTION_OPTIONS}
    return {
        "default": {
            "BACKEND": "kandev.redis_cache.FallbackRedisCache",
            "LOCATION": url,
            "KEY_PREFIX": _PREFIX,
            "OPTIONS": options,
        }
    }

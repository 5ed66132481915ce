"""Settings for Redis, which carries wake-ups and rate limits between hosts. Losing it loses no data.

The timeouts are short, so that a Redis that is down or hangs delays a request by at most a second.
"""

from __future__ import annotations

from typing import Any, Final

_CONNECTION_OPTIONS: Final[dict[str, Any]] = {
    "socket_connect_timeout": 1.0,
    "socket_timeout": 1.0,
    "socket_keepalive": True,
    "health_check_interval": 10,  # notices connections that broke silently
}
_PREFIX: Final = "kandev"


def channel_layer_settings(url: str) -> dict[str, Any]:
    """Return ``CHANNEL_LAYERS``: wake-ups between processes, or within one process without Redis.

    Uses the publish/subscribe layer instead of the one with queues: a wake-up without a receiver must not be stored,
    and one command reaches many receivers.
    """
    if not url:
        return {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
    from redis.asyncio.retry import Retry  # noqa: PLC0415  (imported only with Redis, because it is slow)
    from redis.backoff import NoBackoff  # noqa: PLC0415

    no_retry = Retry(NoBackoff(), 0)
    return {
        "default": {
            "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
            "CONFIG": {"hosts": [{"address": url, "retry": no_retry, **_CONNECTION_OPTIONS}], "prefix": _PREFIX},
        }
    }


def cache_settings(url: str) -> dict[str, Any]:
    """Return ``CACHES``: rate-limit counters, shared by all processes with Redis, else one set for each process."""
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

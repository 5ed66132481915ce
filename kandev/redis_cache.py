"""A cache in Redis that falls back to a local one while Redis is unavailable."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final

from django.core.cache.backends.locmem import LocMemCache
from django.core.cache.backends.redis import RedisCache
from redis.exceptions import RedisError

log = logging.getLogger(__name__)

RETRY_AFTER_SECONDS: Final = 5.0
"""Seconds until Redis is tried again after a failure."""


def _with_fallback(name: str) -> Callable[..., Any]:
    """Return a cache method that uses Redis, or the local cache while Redis is unavailable."""

    def call(self: FallbackRedisCache, *args: Any, **kwargs: Any) -> Any:
        if time.monotonic() >= self.retry_at:
            try:
                return getattr(RedisCache, name)(self, *args, **kwargs)
            except (RedisError, OSError) as error:
                self.retry_at = time.monotonic() + RETRY_AFTER_SECONDS
                log.warning(
                    "Redis is unavailable; rate limits are counted for each process until it returns: %s", error
                )
        return getattr(self.fallback, name)(*args, **kwargs)

    call.__name__ = name
    return call


class FallbackRedisCache(RedisCache):
    """A Redis cache for rate limits, which stay in force without Redis, counted for each process."""

    retry_at = 0.0

    def __init__(self, server: str, params: dict[str, Any]):
        super().__init__(server, params)
        self.fallback = LocMemCache("kandev-alone", params | {"OPTIONS": {}})


_METHODS: Final = (
    *("add", "get", "set", "touch", "delete", "get_many", "has_key"),
    *("incr", "set_many", "delete_many", "clear"),
)
for _name in _METHODS:
    setattr(FallbackRedisCache, _name, _with_fallback(_name))

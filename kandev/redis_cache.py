"""A cache in Redis; while that is away each process goes on with one of its own."""

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
"""Seconds for which a Redis that did not answer is not asked again."""


def _with_fallback(name: str) -> Callable[..., Any]:
    """The verb of a cache, done by Redis, or by this process alone."""

    def act(self: FallbackRedisCache, *args: Any, **kwargs: Any) -> Any:
        if time.monotonic() >= self.asks_again_at:
            try:
                return getattr(RedisCache, name)(self, *args, **kwargs)
            except (RedisError, OSError) as error:
                self.asks_again_at = time.monotonic() + RETRY_AFTER_SECONDS
                log.warning("Redis does not answer, so each process counts for itself: %s", error)
        return getattr(self.alone, name)(*args, **kwargs)

    act.__name__ = name
    return act


class FallbackRedisCache(RedisCache):
    """Counts of attempts go on whatever Redis does: they are then each process's own, and never unbounded."""

    asks_again_at = 0.0

    def __init__(self, server: str, params: dict[str, Any]):
        super().__init__(server, params)
        self.alone = LocMemCache("kandev-alone", {**params, "OPTIONS": {}})

    add = _with_fallback("add")
    get = _with_fallback("get")
    set = _with_fallback("set")
    touch = _with_fallback("touch")
    delete = _with_fallback("delete")
    get_many = _with_fallback("get_many")
    has_key = _with_fallback("has_key")
    incr = _with_fallback("incr")
    set_many = _with_fallback("set_many")
    delete_many = _with_fallback("delete_many")
    clear = _with_fallback("clear")

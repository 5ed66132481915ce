"""Processes share Redis; during an outage each process counts for itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kandev import databases, redis_cache
from kandev.environment import InvalidEnvironment, read_environment
from kandev.redis_cache import FallbackRedisCache
from tests.redis_server import RedisServer, running_redis


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with running_redis() as made:
        yield made


@pytest.fixture
def new_cache(server: RedisServer) -> Iterator[Callable[[], FallbackRedisCache]]:
    """Yield a function that creates the cache of another process."""
    all_made: list[FallbackRedisCache] = []

    def make() -> FallbackRedisCache:
        options: dict[str, Any] = dict(databases.cache_settings(server.url)["default"])
        assert options.pop("BACKEND") == "kandev.redis_cache.FallbackRedisCache"
        all_made.append(FallbackRedisCache(options.pop("LOCATION"), options))
        return all_made[-1]

    yield make
    for made in all_made:
        pools: dict[int, Any] = vars(made._cache)["_pools"]  # Django keeps its connections open
        for pool in pools.values():
            pool.disconnect()


@pytest.fixture(autouse=True)
def _reset_fallback() -> Iterator[None]:
    """Reset the counts that a process keeps alone, so that no other test sees them."""
    yield
    FallbackRedisCache("redis://nowhere", {}).fallback.clear()


def test_processes_share_their_counts(new_cache: Callable[[], FallbackRedisCache]) -> None:
    one, other = new_cache(), new_cache()
    one.add("tries", 0, 60)
    assert [one.incr("tries"), other.incr("tries"), one.incr("tries")] == [1, 2, 3]


def test_processes_count_alone_during_an_outage_and_together_again_afterwards(
    server: RedisServer, new_cache: Callable[[], FallbackRedisCache], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_cache, "RETRY_AFTER_SECONDS", 0.0)
    one, other = new_cache(), new_cache()
    one.add("tries", 0, 60)
    server.kill()
    one.add("tries", 0, 60)
    assert [one.incr("tries"), one.incr("tries")] == [1, 2]
    server.start()
    assert one.get("tries") is None, "the new cache is empty"
    one.add("tries", 0, 60)
    assert [one.incr("tries"), other.incr("tries")] == [1, 2]


def test_hanging_redis_is_waited_for_once(
    server: RedisServer, new_cache: Callable[[], FallbackRedisCache], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_cache, "RETRY_AFTER_SECONDS", 3600.0)
    cache = new_cache()
    cache.set("known", 1)
    server.freeze()
    assert cache.get("known") is None
    next_try = cache.retry_at
    assert next_try > time.monotonic()
    for _ in range(100):
        cache.set("known", 2)
    assert (cache.get("known"), cache.retry_at) == (2, next_try), "the cache did not ask again"
    server.thaw()


@pytest.mark.parametrize("url", ["localhost:6379", "http://redis", "redis://", "redis"])
def test_invalid_redis_address_stops_the_start(url: str) -> None:
    with pytest.raises(InvalidEnvironment, match="KANDEV_REDIS_URL: must look like"):
        read_environment({"KANDEV_REDIS_URL": url})


@pytest.mark.parametrize("url", ["redis://h", "redis://:secret@h:6379/0", "rediss://h:6380/1", "unix:///run/r.sock"])
def test_redis_addresses_are_accepted(url: str) -> None:
    assert read_environment({"KANDEV_REDIS_URL": url}).redis_url == url


def test_process_without_redis_uses_in_memory_layer_and_cache() -> None:
    backends = [made("")["default"]["BACKEND"] for made in (databases.channel_layer_settings, databases.cache_settings)]
    assert backends == ["channels.layers.InMemoryChannelLayer", "django.core.cache.backends.locmem.LocMemCache"]

"""Hosts that share a Redis wake one another by it, and not by the database; while it is away nobody fails or waits."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from channels.layers import channel_layers
from django.db import transaction

from kandev import databases
from sessions_app.models import NewEvent, append_events, pubsub, wakeups
from sessions_app.models.pubsub import CHANNEL
from sessions_app.models.pubsub_redis import RedisPubSub
from tests.databases import url_of_test_database
from tests.models.test_wakeups import hears
from tests.redis_server import RedisServer, running_redis
from tests.supervisor.rows import make_session
from tests.waiting import eventually

pytestmark = [pytest.mark.postgresql, pytest.mark.django_db(transaction=True)]


@pytest.fixture(scope="module")
def module_server() -> Iterator[RedisServer]:
    with running_redis() as made:
        yield made


@pytest.fixture
def server(module_server: RedisServer, tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch) -> RedisServer:
    """The Redis of this deployment, which answers."""
    settings.KANDEV_DATA_DIR = tmp_path / "data"
    settings.KANDEV_REDIS_URL = module_server.url
    settings.CHANNEL_LAYERS = databases.channel_layer_settings(module_server.url)
    monkeypatch.setattr(pubsub, "RETRY", 0.05)
    if not module_server.answers():
        module_server.kill()
        module_server.start()
    return module_server


@pytest.fixture
def listener(server: RedisServer) -> Iterator[socket.socket]:
    """Somebody who listens here, and whose relay does."""
    made = wakeups.open_listener()
    try:
        eventually(lambda: server.subscribers() == 1, timeout=30, describe="the relay listens")
        hears(made)
        yield made
    finally:
        wakeups.close_listener(made)


@pytest.fixture
def elsewhere(server: RedisServer) -> Iterator[socket.socket]:
    """Another host's relay; readable when it is rung."""
    bell, hammer = socket.socketpair()
    bell.setblocking(False)

    def strike() -> None:
        hammer.send(b"!")

    relay = pubsub.Relay(str(wakeups.socket_directory()), strike)
    relay.here = "another host"
    relay.start()
    with bell, hammer:
        eventually(lambda: hears(bell), timeout=30, describe="it listens, and says so once")
        yield bell
        relay.end()
        relay.join(30)
        assert not relay.is_alive()


def test_another_host_wakes_every_listener_here(listener: socket.socket) -> None:
    other = wakeups.open_listener()
    RedisPubSub().tell("another host")
    for one in (listener, other):
        eventually(lambda one=one: hears(one), timeout=30, describe="it is rung")  # type: ignore[misc]
    wakeups.close_listener(other)


def test_what_is_written_here_wakes_another_host_by_redis_alone(
    listener: socket.socket, elsewhere: socket.socket
) -> None:
    session = make_session()
    with psycopg.connect(url_of_test_database(), autocommit=True) as database:
        database.execute(f"LISTEN {CHANNEL}")
        with transaction.atomic():
            hears(listener)
            append_events(session.id, [NewEvent("tick")])
        eventually(lambda: hears(elsewhere), timeout=30, describe="the other host is rung")
        assert not list(database.notifies(timeout=0.1))
    assert hears(listener) == 1, "by the socket, and not by its own message"


def test_process_that_only_writes_wakes_another_host_without_a_relay(elsewhere: socket.socket) -> None:
    wakeups.notify()
    eventually(lambda: hears(elsewhere), timeout=30, describe="it is rung")


@pytest.mark.parametrize("trouble", ["kill", "freeze"])
def test_whoever_writes_while_redis_is_away_has_written(
    server: RedisServer, listener: socket.socket, trouble: str
) -> None:
    session = make_session()
    getattr(server, trouble)()
    with transaction.atomic():
        hears(listener)
        append_events(session.id, [NewEvent("tick")])
    pubsub.notify_hosts(str(wakeups.socket_directory()))
    assert session.events.count() == 1
    assert hears(listener), "whoever shares the host is told as ever"
    if trouble == "freeze":
        server.thaw()


def test_when_redis_is_back_the_hosts_wake_one_another_again(
    server: RedisServer, listener: socket.socket, elsewhere: socket.socket
) -> None:
    server.kill()
    wakeups.notify()
    server.start()
    eventually(lambda: server.subscribers() == 2, timeout=60, describe="both listen again")
    hears(elsewhere)
    wakeups.notify()
    eventually(lambda: hears(elsewhere), timeout=30, describe="the other host is rung")
    RedisPubSub().tell("a third host")
    eventually(lambda: hears(listener), timeout=30, describe="so is this one")


def test_last_listener_ends_the_subscription(server: RedisServer) -> None:
    two = [wakeups.open_listener(), wakeups.open_listener()]
    eventually(lambda: server.subscribers() == 1, timeout=30, describe="one subscription for both")
    for one in two:
        wakeups.close_listener(one)
    eventually(lambda: server.subscribers() == 0, timeout=30, describe="it is gone")


def test_the_layer_of_the_settings_is_the_one_that_is_used(server: RedisServer) -> None:
    assert type(channel_layers["default"]).__name__ == "RedisPubSubChannelLayer"
    assert isinstance(pubsub.configured_pubsub(), RedisPubSub)

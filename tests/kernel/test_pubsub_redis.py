"""Hosts that share Redis wake each other through it alone; an outage of Redis blocks and fails nothing."""

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
from sessions_app.kernel import pubsub, wakeups
from sessions_app.kernel.pubsub import CHANNEL
from sessions_app.kernel.pubsub_redis import RedisPubSub
from sessions_app.models import NewEvent, append_events
from tests.databases import url_of_test_database
from tests.kernel.test_wakeups import count_wakeups
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
    """Return the deployment's Redis, running."""
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
    """Yield a listener on this host, once its relay is listening."""
    made = wakeups.open_listener()
    try:
        eventually(lambda: server.subscribers() == 1, describe="the relay listens")
        count_wakeups(made)
        yield made
    finally:
        wakeups.close_listener(made)


@pytest.fixture
def elsewhere(server: RedisServer) -> Iterator[socket.socket]:
    """Yield a socket that becomes readable when another host's relay is woken."""
    bell, hammer = socket.socketpair()
    bell.setblocking(False)

    def start_sending() -> None:
        hammer.send(b"!")

    relay = pubsub.Relay(str(wakeups.socket_directory()), start_sending)
    relay.here = "another host"
    relay.start()
    with bell, hammer:
        eventually(lambda: count_wakeups(bell), describe="the relay listens and sends its first wake-up")
        yield bell
        relay.end()
        relay.join(60)
        assert not relay.is_alive()


def test_another_host_wakes_every_listener_here(listener: socket.socket) -> None:
    other = wakeups.open_listener()
    RedisPubSub().tell("another host")
    for one in (listener, other):
        eventually(lambda one=one: count_wakeups(one), describe="woken")  # type: ignore[misc]
    wakeups.close_listener(other)


def test_write_on_this_host_wakes_another_host_by_redis_alone(
    listener: socket.socket, elsewhere: socket.socket
) -> None:
    session = make_session()
    with psycopg.connect(url_of_test_database(), autocommit=True) as database:
        database.execute(f"LISTEN {CHANNEL}")
        with transaction.atomic():
            count_wakeups(listener)
            append_events(session.id, [NewEvent("tick")])
        eventually(lambda: count_wakeups(elsewhere), describe="the other host is woken")
        assert not list(database.notifies(timeout=0.1))
    assert count_wakeups(listener) == 1, "woken by the socket, not by its own message"


def test_process_that_only_writes_wakes_another_host_without_a_relay(elsewhere: socket.socket) -> None:
    wakeups.notify()
    eventually(lambda: count_wakeups(elsewhere), describe="the other host is woken")


@pytest.mark.parametrize("trouble", ["kill", "freeze"])
def test_writes_succeed_while_redis_is_down(server: RedisServer, listener: socket.socket, trouble: str) -> None:
    session = make_session()
    getattr(server, trouble)()
    with transaction.atomic():
        count_wakeups(listener)
        append_events(session.id, [NewEvent("tick")])
    pubsub.notify_hosts(str(wakeups.socket_directory()))
    assert session.events.count() == 1
    assert count_wakeups(listener), "listeners on the same host are woken all the same"
    if trouble == "freeze":
        server.thaw()


def test_hosts_wake_each_other_again_after_an_outage(
    server: RedisServer, listener: socket.socket, elsewhere: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    server.kill()
    wakeups.notify()
    eventually(lambda: "polling instead" in caplog.text, describe="the outage is logged")
    server.start()
    eventually(lambda: server.subscribers() == 2, timeout=60, describe="both relays listen again")
    count_wakeups(elsewhere)
    wakeups.notify()
    eventually(lambda: count_wakeups(elsewhere), describe="the other host is woken")
    RedisPubSub().tell("a third host")
    eventually(lambda: count_wakeups(listener), describe="this host is woken")
    for relay_line in ("polling instead", "arrive again"):
        assert caplog.text.count(relay_line) <= 2, "each of the two relays says it once"
    assert "arrive again" in caplog.text


def test_last_listener_ends_the_subscription(server: RedisServer) -> None:
    two = [wakeups.open_listener(), wakeups.open_listener()]
    eventually(lambda: server.subscribers() == 1, describe="both share one subscription")
    for one in two:
        wakeups.close_listener(one)
    eventually(lambda: server.subscribers() == 0, describe="the subscription has ended")


def test_configured_channel_layer_is_used(server: RedisServer) -> None:
    assert type(channel_layers["default"]).__name__ == "RedisPubSubChannelLayer"
    assert isinstance(pubsub.configured_pubsub(), RedisPubSub)

"""Hosts that share PostgreSQL but no Redis wake each other through it; a broken connection is reopened."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import transaction

from sessions_app.kernel import pubsub, wakeups
from sessions_app.kernel.pubsub import CHANNEL, Relay
from sessions_app.models import NewEvent, append_events
from tests.databases import url_of_test_database
from tests.kernel.test_wakeups import count_wakeups
from tests.supervisor.rows import make_session
from tests.waiting import PATIENCE, eventually

pytestmark = [pytest.mark.postgresql, pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def data_directory(tmp_path: Path, settings: Any) -> None:
    settings.KANDEV_DATA_DIR = tmp_path / "data"


@pytest.fixture
def elsewhere() -> Iterator[psycopg.Connection]:
    """Yield the connection of another host."""
    with psycopg.connect(url_of_test_database(), autocommit=True) as made:
        yield made


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Yield a listener on this host, once its relay is listening."""
    made = wakeups.open_listener()
    try:
        eventually(lambda: count_wakeups(made), describe="the relay listens and has sent its first wake-up")
        yield made
    finally:
        wakeups.close_listener(made)


def notify(elsewhere: psycopg.Connection) -> None:
    elsewhere.execute("SELECT pg_notify(%s, 'another host')", (CHANNEL,))


def count_notices(elsewhere: psycopg.Connection, timeout: float) -> int:
    """Return how many notifications another host receives within ``timeout`` seconds, at most one."""
    return len(list(elsewhere.notifies(timeout=timeout, stop_after=1)))


def test_another_host_wakes_every_listener_here(listener: socket.socket, elsewhere: psycopg.Connection) -> None:
    other = wakeups.open_listener()
    notify(elsewhere)
    for one in (listener, other):
        eventually(lambda one=one: count_wakeups(one), describe="the listener is woken")  # type: ignore[misc]
    wakeups.close_listener(other)


def test_write_on_this_host_wakes_another_host(listener: socket.socket, elsewhere: psycopg.Connection) -> None:
    session = make_session()
    elsewhere.execute(f"LISTEN {CHANNEL}")
    with transaction.atomic():
        count_wakeups(listener)
        append_events(session.id, [NewEvent("tick")])
    # On a busy machine, the notification of the new session may come after LISTEN.
    assert count_notices(elsewhere, 10) >= 1
    assert count_wakeups(listener) == 1, "woken by the socket, not by its own notification"


def test_process_that_only_writes_wakes_another_host_without_a_relay(elsewhere: psycopg.Connection) -> None:
    elsewhere.execute(f"LISTEN {CHANNEL}")
    wakeups.notify()
    assert count_notices(elsewhere, 10) == 1


def test_many_wakeups_do_not_block_and_become_few_notifications(elsewhere: psycopg.Connection) -> None:
    elsewhere.execute(f"LISTEN {CHANNEL}")
    relay = Relay(str(wakeups.socket_directory()), lambda: None)
    for _ in range(5000):
        relay.tell()
    relay.start()
    assert count_notices(elsewhere, 10) == 1
    relay.end()
    relay.join(PATIENCE)
    assert len(list(elsewhere.notifies(timeout=0.1))) < 5


def test_broken_connection_is_reopened(listener: socket.socket, elsewhere: psycopg.Connection) -> None:
    cut = """
        SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND query ILIKE 'LISTEN%%' AND pid <> %s
    """
    assert elsewhere.execute(cut, (elsewhere.info.backend_pid,)).rowcount == 1
    eventually(lambda: count_wakeups(listener), describe="the relay listens again and wakes its listener")
    notify(elsewhere)
    eventually(lambda: count_wakeups(listener), describe="the listener is woken")


def test_last_listener_closes_the_connection(elsewhere: psycopg.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, open_connection = list[int](), pubsub._own_connection

    def opens() -> Any:
        session = open_connection()
        opened.append(session.info.backend_pid)
        return session

    def listening() -> list[int]:
        found = elsewhere.execute("SELECT pid FROM pg_stat_activity WHERE pid = ANY(%s)", (opened,)).fetchall()
        return [pid for (pid,) in found]

    monkeypatch.setattr(pubsub, "_own_connection", opens)
    two = [wakeups.open_listener(), wakeups.open_listener()]
    eventually(lambda: opened, describe="the relay is connected")
    assert listening() == opened
    for one in two:
        wakeups.close_listener(one)
    eventually(lambda: not listening(), describe="the connection is closed")
    assert len(opened) == 1, "both share one connection"

"""Hosts that share a PostgreSQL, and no Redis, wake one another by it; a connection that breaks is made anew."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction

from sessions_app.models import NewEvent, append_events, wakeups
from sessions_app.models.pubsub import CHANNEL, Relay
from tests.databases import url_of_test_database
from tests.models.test_wakeups import hears
from tests.supervisor.rows import make_session
from tests.waiting import eventually

pytestmark = [pytest.mark.postgresql, pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def data_directory(tmp_path: Path, settings: Any) -> None:
    settings.KANDEV_DATA_DIR = tmp_path / "data"


@pytest.fixture
def elsewhere() -> Iterator[psycopg.Connection]:
    """Another host's connection."""
    with psycopg.connect(url_of_test_database(), autocommit=True) as made:
        yield made


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Somebody who listens here, and whose relay does."""
    made = wakeups.open_listener()
    try:
        eventually(lambda: hears(made), describe="the relay listens, and says so once")
        yield made
    finally:
        wakeups.close_listener(made)


def notify(elsewhere: psycopg.Connection) -> None:
    elsewhere.execute("SELECT pg_notify(%s, 'another host')", (CHANNEL,))


def heard(elsewhere: psycopg.Connection, timeout: float) -> int:
    """How often another host is woken within ``timeout`` seconds, at most once."""
    return len(list(elsewhere.notifies(timeout=timeout, stop_after=1)))


def test_another_host_wakes_every_listener_here(listener: socket.socket, elsewhere: psycopg.Connection) -> None:
    other = wakeups.open_listener()
    notify(elsewhere)
    for one in (listener, other):
        eventually(lambda one=one: hears(one), describe="it is rung")  # type: ignore[misc]
    wakeups.close_listener(other)


def test_what_is_written_here_wakes_another_host(listener: socket.socket, elsewhere: psycopg.Connection) -> None:
    session = make_session()
    elsewhere.execute(f"LISTEN {CHANNEL}")
    with transaction.atomic():
        hears(listener)
        append_events(session.id, [NewEvent("tick")])
    assert heard(elsewhere, 10) >= 1  # on a busy machine, the notification of the new session may come after LISTEN
    assert hears(listener) == 1, "by the socket, and not by its own notification"


def test_process_that_only_writes_wakes_another_host_without_a_relay(elsewhere: psycopg.Connection) -> None:
    elsewhere.execute(f"LISTEN {CHANNEL}")
    wakeups.notify()
    assert heard(elsewhere, 10) == 1


def test_many_rings_at_once_block_nobody_and_are_few_notifications(elsewhere: psycopg.Connection) -> None:
    elsewhere.execute(f"LISTEN {CHANNEL}")
    relay = Relay(str(wakeups.socket_directory()), lambda: None)
    for _ in range(5000):
        relay.tell()
    relay.start()
    assert heard(elsewhere, 10) == 1
    relay.end()
    relay.join(10)
    assert len(list(elsewhere.notifies(timeout=0.1))) < 5


def test_a_connection_that_was_cut_is_made_anew(listener: socket.socket, elsewhere: psycopg.Connection) -> None:
    cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query ILIKE 'LISTEN%%' AND pid <> %s"
    assert elsewhere.execute(cut, (elsewhere.info.backend_pid,)).rowcount == 1
    eventually(lambda: hears(listener), describe="it listens anew, and looks for what it has missed")
    notify(elsewhere)
    eventually(lambda: hears(listener), describe="it is rung")


def test_last_listener_closes_the_connection(elsewhere: psycopg.Connection) -> None:
    def listening() -> int:
        found = elsewhere.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND pid <> ALL(%s)",
            (connection.settings_dict["NAME"], [elsewhere.info.backend_pid, own]),
        ).fetchone()
        return int(found[0]) if found else 0

    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        own = cursor.fetchone()[0]
    two = [wakeups.open_listener(), wakeups.open_listener()]
    eventually(lambda: listening() == 1, describe="one connection for both")
    for one in two:
        wakeups.close_listener(one)
    eventually(lambda: listening() == 0, describe="it is closed")

"""Whoever waits for the database is woken; nobody waits for whoever does not listen."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction

from sessions_app.models import NewEvent, append_events, wakeups
from tests.supervisor.rows import make_session


@pytest.fixture(autouse=True)
def data_directory(tmp_path: Path, settings: Any) -> Path:
    settings.KANDEV_DATA_DIR = tmp_path / "data"
    return tmp_path / "data"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    made = wakeups.open_listener()
    yield made
    wakeups.close_listener(made)


@pytest.fixture
def rung(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each time that everybody is rung."""
    times: list[int] = []
    monkeypatch.setattr(wakeups, "notify", lambda: times.append(1))
    return times


def hears(listener: socket.socket) -> int:
    """How often it was rung."""
    rung = 0
    try:
        while listener.recv(16):
            rung += 1
    except BlockingIOError:
        return rung
    return rung


def test_everybody_who_listens_is_rung(listener: socket.socket) -> None:
    other = wakeups.open_listener()
    wakeups.notify()
    assert (hears(listener), hears(other)) == (1, 1)
    wakeups.close_listener(other)


@pytest.mark.django_db(transaction=True)
def test_a_transaction_that_tells_of_much_rings_once(rung: list[int]) -> None:
    with transaction.atomic():
        for session in (make_session(), make_session()):
            append_events(session.id, [NewEvent("noted")])
            wakeups.notify_on_commit()
    assert rung == [1]


@pytest.mark.django_db(transaction=True)
def test_what_was_taken_back_rings_nobody_and_silences_nobody(rung: list[int]) -> None:
    with transaction.atomic():
        with suppress(ZeroDivisionError), transaction.atomic():
            wakeups.notify_on_commit()
            raise ZeroDivisionError
        assert rung == []
        wakeups.notify_on_commit()
    assert rung == [1]


def test_wake_up_without_a_listener_is_harmless() -> None:
    wakeups.notify()


def test_socket_directory_is_closed_to_other_users(listener: socket.socket) -> None:
    assert wakeups.socket_directory().stat().st_mode & 0o777 == 0o700


def test_closed_listener_is_no_longer_woken(listener: socket.socket) -> None:
    other = wakeups.open_listener()
    wakeups.close_listener(other)
    assert len(list(wakeups.socket_directory().iterdir())) == 1


def test_the_bell_of_a_dead_process_is_taken_away(listener: socket.socket) -> None:
    dead = wakeups.open_listener()
    dead.close()
    wakeups.notify()
    assert len(list(wakeups.socket_directory().iterdir())) == 1
    assert hears(listener) == 1


def test_who_does_not_read_blocks_nobody(listener: socket.socket) -> None:
    deaf = wakeups.open_listener()
    for _ in range(2000):
        wakeups.notify()
        hears(listener)
    wakeups.notify()
    assert hears(listener) == 1
    wakeups.close_listener(deaf)


def test_a_data_directory_may_lie_deep(tmp_path: Path, settings: Any) -> None:
    settings.KANDEV_DATA_DIR = tmp_path / ("d" * 100) / ("e" * 100)
    listener = wakeups.open_listener()
    wakeups.notify()
    assert hears(listener) == 1
    wakeups.close_listener(listener)
    assert list(wakeups.socket_directory().iterdir()) == []


def test_waiting_leaves_no_descriptor_behind() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        listener = wakeups.open_listener()
        wakeups.notify()
        wakeups.close_listener(listener)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.django_db(transaction=True)
def test_wakeup_follows_the_commit_and_never_a_rollback(listener: socket.socket) -> None:
    session = make_session()
    hears(listener)
    with transaction.atomic():
        append_events(session.id, [NewEvent("tick")])
        assert hears(listener) == 0
    assert hears(listener) == 1
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        append_events(session.id, [NewEvent("tick")])
        raise ZeroDivisionError
    assert hears(listener) == 0


@pytest.mark.django_db(transaction=True)
def test_the_databases_version_changes_when_somebody_else_has_written_and_only_then() -> None:
    session = make_session()

    def write() -> None:
        try:
            with transaction.atomic():
                append_events(session.id, [NewEvent("tick")])
        finally:
            connection.close()

    before = wakeups.database_version()
    assert wakeups.database_version() == before
    with ThreadPoolExecutor(1) as pool:
        pool.submit(write).result(10)
        after = wakeups.database_version()
        assert after != before
        assert wakeups.database_version() == after

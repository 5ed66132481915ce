"""Processes that wait for the database are woken; missing listeners delay nothing."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction

from sessions_app.kernel import wakeups
from sessions_app.models import NewEvent, append_events
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
def notifications(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list with one entry for each wake-up."""
    times: list[int] = []
    monkeypatch.setattr(wakeups, "notify", lambda: times.append(1))
    return times


def count_wakeups(listener: socket.socket) -> int:
    """Return how often the listener was woken."""
    notifications = 0
    try:
        while listener.recv(16):
            notifications += 1
    except BlockingIOError:
        return notifications
    return notifications


def test_every_listener_is_woken(listener: socket.socket) -> None:
    other = wakeups.open_listener()
    wakeups.notify()
    assert (count_wakeups(listener), count_wakeups(other)) == (1, 1)
    wakeups.close_listener(other)


@pytest.mark.django_db(transaction=True)
def test_transaction_with_many_events_wakes_once(notifications: list[int]) -> None:
    with transaction.atomic():
        for session in (make_session(), make_session()):
            append_events(session.id, [NewEvent("noted")])
            wakeups.notify_on_commit()
    assert notifications == [1]


@pytest.mark.django_db(transaction=True)
def test_rollback_wakes_nobody_and_suppresses_nothing(notifications: list[int]) -> None:
    with transaction.atomic():
        with suppress(ZeroDivisionError), transaction.atomic():
            wakeups.notify_on_commit()
            raise ZeroDivisionError
        assert notifications == []
        wakeups.notify_on_commit()
    assert notifications == [1]


def test_wake_up_without_a_listener_is_harmless() -> None:
    wakeups.notify()


def test_socket_directory_is_closed_to_other_users(listener: socket.socket) -> None:
    assert wakeups.socket_directory().stat().st_mode & 0o777 == 0o700


def test_closed_listener_is_no_longer_woken(listener: socket.socket) -> None:
    other = wakeups.open_listener()
    wakeups.close_listener(other)
    assert len(list(wakeups.socket_directory().iterdir())) == 1


def test_socket_of_a_dead_process_is_removed(listener: socket.socket) -> None:
    dead = wakeups.open_listener()
    dead.close()
    wakeups.notify()
    assert len(list(wakeups.socket_directory().iterdir())) == 1
    assert count_wakeups(listener) == 1


def test_listener_that_does_not_read_blocks_nobody(listener: socket.socket) -> None:
    deaf = wakeups.open_listener()
    for _ in range(2000):
        wakeups.notify()
        count_wakeups(listener)
    wakeups.notify()
    assert count_wakeups(listener) == 1
    wakeups.close_listener(deaf)


def test_data_directory_may_have_a_long_path(tmp_path: Path, settings: Any) -> None:
    settings.KANDEV_DATA_DIR = tmp_path / ("d" * 100) / ("e" * 100)
    listener = wakeups.open_listener()
    wakeups.notify()
    assert count_wakeups(listener) == 1
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
    count_wakeups(listener)
    with transaction.atomic():
        append_events(session.id, [NewEvent("tick")])
        assert count_wakeups(listener) == 0
    assert count_wakeups(listener) == 1
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        append_events(session.id, [NewEvent("tick")])
        raise ZeroDivisionError
    assert count_wakeups(listener) == 0


@pytest.mark.django_db(transaction=True)
def test_database_version_changes_only_after_other_writes() -> None:
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

"""Where many write at once everybody gets a turn; who holds a lease has no time to wait for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context

import pytest
from django.db import OperationalError, connection
from django.db.transaction import atomic

from sessions_app.models import TaskSession, locking, session_transaction
from tests.supervisor.rows import MINE, names, running_session

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def session() -> TaskSession:
    """A session, on a connection that waits for a lock for no more than a moment."""
    made = running_session()
    moment = "PRAGMA busy_timeout = 30" if connection.vendor == "sqlite" else "SET lock_timeout = '30ms'"
    with connection.cursor() as cursor:
        cursor.execute(moment)
    return made


@contextmanager
def held_by_another(session: TaskSession) -> Iterator[threading.Event]:
    """Somebody else has the session's row until the event is set, or the block ends."""
    has, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        try:
            with atomic():
                TaskSession.objects.select_for_update().get(id=session.id)
                has.set()
                assert let_go.wait(30)
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(hold)
        assert has.wait(10)
        try:
            yield let_go
        finally:
            let_go.set()
            holding.result(30)


def speak(session: TaskSession) -> None:
    with session_transaction(session.id) as transaction:
        transaction.record_event("session.workspace.changed")


def test_request_retries_until_it_gets_the_lock(session: TaskSession, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def busy(error: OperationalError) -> bool:
        tries.append(error)
        if len(tries) == 3:
            let_go.set()
        return is_busy(error)

    is_busy = locking.is_busy
    monkeypatch.setattr(locking, "is_busy", busy)
    with held_by_another(session) as let_go:
        speak(session)
    assert names(session) == ["session.workspace.changed"]
    assert len(tries) >= 3


def test_patience_has_an_end(session: TaskSession) -> None:
    with held_by_another(session), pytest.raises(OperationalError):
        copy_context().run(speak_impatiently, session)
    assert names(session) == []


def speak_impatiently(session: TaskSession) -> None:
    locking.wait_briefly_for_locks()
    speak(session)


def test_who_holds_a_lease_does_not_wait_longer_than_a_lock_may(session: TaskSession) -> None:
    with (
        held_by_another(session),
        pytest.raises(OperationalError),
        session_transaction(session.id, MINE) as transaction,
    ):
        transaction.record_event("session.workspace.changed")
    assert names(session) == []


def test_error_inside_the_block_is_raised_without_retry(session: TaskSession) -> None:
    tries = []
    with pytest.raises(OperationalError), session_transaction(session.id) as transaction:
        transaction.record_event("session.workspace.changed")
        tries.append(transaction)
        raise OperationalError("database is locked")
    assert (len(tries), names(session)) == (1, [])

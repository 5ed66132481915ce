"""Concurrent writers all get their turn; the holder of a lease does not wait for long."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context

import pytest
from django.db import OperationalError, connection
from django.db.transaction import atomic

from sessions_app.kernel import transactions
from sessions_app.models import TaskSession, session_transaction
from tests.raw_events import record_raw_event
from tests.supervisor.rows import MINE, names, running_session
from tests.waiting import PATIENCE

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def session() -> TaskSession:
    """Return a session, on a connection with a lock timeout of 30 ms."""
    made = running_session()
    moment = "PRAGMA busy_timeout = 30" if connection.vendor == "sqlite" else "SET lock_timeout = '30ms'"
    with connection.cursor() as cursor:
        cursor.execute(moment)
    return made


@contextmanager
def held_by_another(session: TaskSession) -> Iterator[threading.Event]:
    """Lock the session's row in another transaction until the event is set or the block ends."""
    has, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        try:
            with atomic():
                TaskSession.objects.select_for_update().get(id=session.id)
                has.set()
                assert let_go.wait(60)
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(hold)
        assert has.wait(PATIENCE)
        try:
            yield let_go
        finally:
            let_go.set()
            holding.result(30)


def write_event(session: TaskSession) -> None:
    with session_transaction(session.id) as transaction:
        record_raw_event(transaction, "session.workspace.changed")


def test_request_retries_until_it_gets_the_lock(session: TaskSession, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def busy(error: OperationalError) -> bool:
        tries.append(error)
        if len(tries) == 3:
            let_go.set()
        return is_busy(error)

    is_busy = transactions.is_busy
    monkeypatch.setattr(transactions, "is_busy", busy)
    with held_by_another(session) as let_go:
        write_event(session)
    assert names(session) == ["session.workspace.changed"]
    assert len(tries) >= 3


def test_retries_end_after_a_while(session: TaskSession) -> None:
    with held_by_another(session), pytest.raises(OperationalError):
        copy_context().run(write_event_without_retry, session)
    assert names(session) == []


def write_event_without_retry(session: TaskSession) -> None:
    transactions.wait_briefly_for_locks()
    write_event(session)


def test_lease_holder_waits_only_for_the_lock_timeout(session: TaskSession) -> None:
    with (
        held_by_another(session),
        pytest.raises(OperationalError),
        session_transaction(session.id, MINE) as transaction,
    ):
        record_raw_event(transaction, "session.workspace.changed")
    assert names(session) == []


def test_error_inside_the_block_is_raised_without_retry(session: TaskSession) -> None:
    tries = []
    with pytest.raises(OperationalError), session_transaction(session.id) as transaction:
        record_raw_event(transaction, "session.workspace.changed")
        tries.append(transaction)
        raise OperationalError("database is locked")
    assert (len(tries), names(session)) == (1, [])

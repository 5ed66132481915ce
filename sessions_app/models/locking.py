"""Beginning a transaction on a session where many others write: everybody gets a turn, nobody an error."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar

from django.db import OperationalError, connection, transaction

from executors_app.prepared_query import PreparedQuery
from sessions_app.models.database_errors import DATABASE_BUSY, classify_error
from sessions_app.models.session import TaskSession, session_key

_lock_timeout: ContextVar[float] = ContextVar("patience", default=20.0)
"""Seconds for which a request waits for its turn; each wait for a lock ends within a third of a lease (rule 6)."""


_LOCKED = TaskSession.objects.select_for_update(no_key=True, of=("self",))
_SESSION = PreparedQuery(lambda key: _LOCKED.filter(id=key))
"""Prepared because ingest locks a session for every batch of lines."""


def wait_briefly_for_locks() -> None:
    """From now on this thread waits for one lock, and no longer: it has leases to renew."""
    _lock_timeout.set(0.0)


def lock_timeout() -> float:
    """Seconds for which this thread may wait for its turn."""
    return _lock_timeout.get()


@contextmanager
def lock_session(session_id: uuid.UUID | str, patience: float, related: Sequence[str] = ()) -> Iterator[TaskSession]:
    """The session's row, locked, in one transaction that ends with the block.

    ``related`` names the rows that it refers to and that are read, not locked, with it.
    Nothing is written before the row is ours, so beginning again is safe. Raises OperationalError
    when ``patience`` seconds are over, and at once within a transaction of the caller's.
    """
    deadline = time.monotonic() + patience
    with ExitStack() as kept:
        yield _begin(kept, session_id, deadline, related)


def _begin(kept: ExitStack, session_id: uuid.UUID | str, deadline: float, related: Sequence[str]) -> TaskSession:
    while True:
        try:
            with ExitStack() as trying:
                trying.enter_context(transaction.atomic())
                session = _read(session_id, related)
                kept.enter_context(trying.pop_all())
                return session
        except OperationalError as error:
            if connection.in_atomic_block or not is_busy(error) or time.monotonic() >= deadline:
                raise


def _read(session_id: uuid.UUID | str, related: Sequence[str]) -> TaskSession:
    key = session_key(session_id)
    found = _LOCKED.select_related(*related).filter(id=key).first() if related else _SESSION.first(key)
    if found is None:
        raise TaskSession.DoesNotExist(f"no session {session_id}")
    return found


def is_busy(error: OperationalError) -> bool:
    """Whether others held the lock for too long: nothing is wrong, and nothing was done."""
    return classify_error(error) is DATABASE_BUSY

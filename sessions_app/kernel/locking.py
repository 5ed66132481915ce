"""Lock a session's row at the beginning of a transaction, with retries while the database is busy.

Also reads that need no lock, but one snapshot of the database.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

from django.db import OperationalError, connection, transaction

from executors_app.orm import PreparedQuery
from sessions_app.kernel.database_errors import DATABASE_BUSY, classify_error, is_cancelled
from sessions_app.kernel.models.session import TaskSession, session_key

_lock_timeout: ContextVar[float] = ContextVar("patience", default=20.0)
"""Seconds for which a request retries; a single wait for a lock always ends well within a lease."""


# "No key": a plain FOR UPDATE would make every INSERT of a row that references the session wait for us.
_LOCKED = TaskSession.objects.select_for_update(no_key=True, of=("self",))
_SESSION = PreparedQuery(lambda key: _LOCKED.filter(id=key))
"""Prepared because ingest locks a session for every batch of lines."""


def wait_briefly_for_locks() -> None:
    """Let this thread wait for a lock only once: it has leases to renew."""
    _lock_timeout.set(0.0)


def lock_timeout() -> float:
    """Return the seconds for which this thread may retry to lock a session."""
    return _lock_timeout.get()


@contextmanager
def lock_on_first_write() -> Iterator[None]:
    """On SQLite, let the transactions in the block lock the database with their first write, not when they begin.

    Other writers then do not wait while such a transaction reads and computes. If one of them has committed since its
    first read, its first write fails with OperationalError, so the caller must be able to begin again.
    """
    connection.ensure_connection()
    if connection.vendor != "sqlite":
        yield
        return
    sqlite: Any = connection
    mode, sqlite.transaction_mode = sqlite.transaction_mode, None
    try:
        yield
    finally:
        sqlite.transaction_mode = mode


@contextmanager
def one_snapshot() -> Iterator[None]:
    """Let all queries in the block see the database as of one moment; the block must not write.

    Inside another transaction, they see what that transaction sees.
    """
    if connection.in_atomic_block:
        yield
        return
    with lock_on_first_write(), transaction.atomic():
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield


_STEPS_BETWEEN_CHECKS = 10_000
"""Instructions of SQLite's virtual machine between two looks at the clock: well below a millisecond."""


def limit_statements(opened: Any, seconds: float) -> None:
    """Let PostgreSQL cancel statements of this connection after ``seconds``; takes effect when it is opened.

    Only this thread's connection object is changed: the settings are shared by all threads.
    """
    if opened.vendor != "postgresql":
        return
    options = opened.settings_dict["OPTIONS"]
    limited = f"{options.get('options', '')} -c statement_timeout={int(seconds * 1000)}"
    opened.settings_dict = {**opened.settings_dict, "OPTIONS": {**options, "options": limited}}


class JobTooLong(OperationalError):
    """The time limit of a database thread has passed, so that no further statement is executed."""


@contextmanager
def limited_job(opened: Any, seconds: float | None) -> Iterator[None]:
    """Execute no statement after the block has used its ``seconds``: JobTooLong.

    On SQLite, the statement that runs at that time is interrupted too: OperationalError. PostgreSQL does this by
    itself (``limit_statements``). On SQLite these are seconds of processor time: a block that waits while others keep
    the database locked costs nobody anything.
    """
    if seconds is None:
        yield
        return
    clock = time.thread_time if opened.vendor == "sqlite" else time.monotonic
    deadline = clock() + seconds

    def execute_in_time(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if clock() > deadline and not sql.startswith("ROLLBACK"):
            raise JobTooLong(JobTooLong.__doc__)
        return execute(sql, params, many, context)

    with opened.execute_wrapper(execute_in_time), _interrupted_after(opened, deadline):
        yield


@contextmanager
def _interrupted_after(opened: Any, deadline: float) -> Iterator[None]:
    """Interrupt SQLite's statements once this thread has used so much processor time."""
    if opened.vendor != "sqlite":
        yield
        return
    opened.ensure_connection()
    database = opened.connection
    database.set_progress_handler(lambda: time.thread_time() > deadline, _STEPS_BETWEEN_CHECKS)
    try:
        yield
    finally:
        database.set_progress_handler(None, _STEPS_BETWEEN_CHECKS)


_WITHOUT_LOCK = ("SELECT", "SAVEPOINT", "RELEASE")


class LockTimer:
    """Measures for how long a block keeps SQLite locked: ``seconds`` from its first statement that needs the lock."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._began: float | None = None

    @contextmanager
    def measure(self) -> Iterator[LockTimer]:
        """Measure the block, which ends with a commit."""
        try:
            with connection.execute_wrapper(self._execute):
                yield self
        finally:
            self.seconds = 0.0 if self._began is None else time.monotonic() - self._began

    def _execute(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if self._began is not None or sql == "BEGIN" or sql.startswith(_WITHOUT_LOCK):
            return execute(sql, params, many, context)
        if sql.startswith("BEGIN"):
            result = execute(sql, params, many, context)  # waits while somebody else keeps SQLite locked
            self._began = time.monotonic()
            return result
        self._began = time.monotonic()
        return execute(sql, params, many, context)


@contextmanager
def lock_session(session_id: uuid.UUID | str, patience: float, related: Sequence[str] = ()) -> Iterator[TaskSession]:
    """Lock the session's row in a transaction that ends with the block, and yield it.

    ``related`` names relations that are read with it, but not locked. Nothing is written before the row is locked, so
    that a retry is safe. Raises OperationalError after ``patience`` seconds, or at once inside a transaction of the
    caller, which a retry could not begin again.
    """
    deadline = time.monotonic() + patience
    with ExitStack() as outer:
        yield _begin(outer, session_id, deadline, related)


def _begin(outer: ExitStack, session_id: uuid.UUID | str, deadline: float, related: Sequence[str]) -> TaskSession:
    # Only a lock is taken in here, so an attempt that fails has written nothing and can be repeated.
    while True:
        try:
            with ExitStack() as attempt:
                attempt.enter_context(transaction.atomic())
                session = _read(session_id, related)
                # The transaction stays open in the caller's stack; on an error before this line, ``attempt`` rolls it
                # back.
                outer.enter_context(attempt.pop_all())
                return session
        except OperationalError as error:
            if connection.in_atomic_block or not is_busy(error) or time.monotonic() >= deadline:
                raise


def _read(session_id: uuid.UUID | str, related: Sequence[str]) -> TaskSession:
    key = session_key(session_id)
    if related:
        found = _LOCKED.select_related(*related).filter(id=key).first()
    else:
        found = _SESSION.first(key)
    if found is None:
        raise TaskSession.DoesNotExist(f"no session {session_id}")
    return found


def is_too_long(error: BaseException) -> bool:
    """Return whether the error means that a statement, or the calls of a thread together, took too long."""
    return isinstance(error, JobTooLong) or is_cancelled(error)


def is_busy(error: OperationalError) -> bool:
    """Return whether the error only means that others held the lock for too long; nothing was written."""
    return classify_error(error) is DATABASE_BUSY


def is_in_transaction() -> bool:
    """Return whether this thread is within a transaction."""
    # The transactions that Django's test cases roll back are not counted, as for ``atomic(durable=True)``.
    return any(not getattr(block, "_from_testcase", False) for block in connection.atomic_blocks)


def refuse_in_transaction() -> None:
    """Raise RuntimeError within a transaction, for work whose cost an agent or member chooses.

    Everyone who writes to the same rows, on SQLite everyone who writes, would wait for it.
    """
    if is_in_transaction():
        raise RuntimeError("This takes as long as a text demands, so it must not run in a transaction.")

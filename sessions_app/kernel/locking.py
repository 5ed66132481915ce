"""When a transaction locks the database, for how long, and what must not run in one; reads in one snapshot."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connection, transaction


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

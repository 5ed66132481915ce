"""Classify database errors: temporary trouble of the database, as opposed to our own mistakes."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Any, Final

from django.db import Error, OperationalError


@dataclass(frozen=True, slots=True)
class DatabaseTrouble:
    """A kind of database trouble, with a text for people."""

    code: str
    title: str
    what: str
    next_step: str
    retry_after: int
    """Seconds after which a retry makes sense."""


DATABASE_FULL: Final = DatabaseTrouble(
    "database_full",
    "The disk is full",
    "The database's disk is full, so nothing was changed. Agents keep running, and their output is kept.",
    "Free some space on that disk, then try again.",
    30,
)
DATABASE_UNAVAILABLE: Final = DatabaseTrouble(
    "database_unavailable",
    "The database cannot be reached",
    "The database is down, starting, or accepts no more connections. Agents keep running, and their output is kept.",
    "Try again in a few seconds. If you have just sent a request, check whether it took effect.",
    5,
)
DATABASE_BUSY: Final = DatabaseTrouble(
    "database_busy",
    "The database is busy",
    "Other processes locked the database for too long, so nothing was changed. Agents keep running.",
    "Try again in a moment.",
    2,
)

_SQLITE: Final = {
    sqlite3.SQLITE_FULL: DATABASE_FULL,
    sqlite3.SQLITE_BUSY: DATABASE_BUSY,
    sqlite3.SQLITE_LOCKED: DATABASE_BUSY,
    sqlite3.SQLITE_PROTOCOL: DATABASE_BUSY,
    sqlite3.SQLITE_INTERRUPT: DATABASE_BUSY,  # the time limit of the thread passed
    sqlite3.SQLITE_CANTOPEN: DATABASE_UNAVAILABLE,
    sqlite3.SQLITE_IOERR: DATABASE_UNAVAILABLE,
    sqlite3.SQLITE_READONLY: DATABASE_UNAVAILABLE,
}
"""By the primary result code: the lower byte of SQLite's extended codes."""
_SQLITE_WORDS: Final = {"database or disk is full": DATABASE_FULL, "database is locked": DATABASE_BUSY}
_POSTGRESQL: Final = {
    "53100": DATABASE_FULL,
    "55P03": DATABASE_BUSY,  # lock_not_available
    "40P01": DATABASE_BUSY,  # deadlock_detected, and ours was the transaction rolled back
    "40001": DATABASE_BUSY,  # serialization_failure
    "57014": DATABASE_BUSY,  # query_canceled: the statement timeout passed
    "25P03": DATABASE_UNAVAILABLE,  # idle_in_transaction_session_timeout
    "25006": DATABASE_UNAVAILABLE,  # read_only_sql_transaction: we reached a standby during a failover
}
_POSTGRESQL_CLASSES: Final = ("08", "53", "57P", "58")
"""Classes of SQLSTATE: connection, resources, operator intervention, system error."""


def classify_error(error: BaseException | None) -> DatabaseTrouble | None:
    """Return the trouble that ``error`` reports; None if it is something else."""
    if not isinstance(error, Error):
        return None
    cause: Any = error.__cause__
    if hasattr(cause, "sqlstate"):
        return _of_postgresql(error, cause.sqlstate)
    code = getattr(cause, "sqlite_errorcode", None)
    if code is not None:
        return _SQLITE.get(code & 0xFF)
    found = (trouble for words, trouble in _SQLITE_WORDS.items() if words in str(error))
    if isinstance(error, OperationalError):
        return next(found, None)
    return None


def is_cancelled(error: BaseException | None) -> bool:
    """Whether the database cancelled a statement because it took too long."""
    cause: Any = getattr(error, "__cause__", None)
    code = getattr(cause, "sqlite_errorcode", None)
    return getattr(cause, "sqlstate", None) == _QUERY_CANCELED or code == sqlite3.SQLITE_INTERRUPT


_QUERY_CANCELED: Final = "57014"


def _of_postgresql(error: Error, state: str | None) -> DatabaseTrouble | None:
    if state is None:  # not from the server: connecting failed, or the connection broke
        if isinstance(error, OperationalError):
            return DATABASE_UNAVAILABLE
        return None
    return _POSTGRESQL.get(state) or (DATABASE_UNAVAILABLE if state.startswith(_POSTGRESQL_CLASSES) else None)

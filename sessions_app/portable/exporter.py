"""The exporter: one process follows the logs of all sessions and keeps their portable record (rule 37).

It reads committed rows only, on its own thread, in small steps with long pauses, because ingest comes first. It
looks only at sessions that have changed. A write that fails is logged once and retried.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Final

from django.db import DatabaseError, InterfaceError, connection

from sessions_app.portable import export_cursor
from sessions_app.portable.export_cursor import ExportCursor
from sessions_app.portable.record import ExporterLock, record_directory
from sessions_app.portable.writer import RecordWriter

log = logging.getLogger(__name__)

MAX_SESSIONS: Final = 32
"""Maximum number of sessions that one step of a shutdown exports. Any other step exports one, because ingest has to
share the interpreter with it that long."""
RETRY_AFTER: Final = 30.0
"""Seconds until a session whose export failed is tried again."""
RECORD_NAME: Final = "the portable record"
LEADER_LOCK_KEY: Final = 0x6B616E64
"""Key of the advisory lock that elects one exporter where several hosts share a database."""


class Exporter:
    """Follows the logs and writes the record; used only on its own thread."""

    def __init__(self, boot_id: str):
        self.boot_id = boot_id
        self._lock = ExporterLock()
        self._leader_connection: object = None
        self._writer: RecordWriter | None = None
        self._cursor = self._saved_cursor = ExportCursor()
        self._pending: dict[uuid.UUID, float] = {}
        """Sessions whose record is behind their log, and when to export each (monotonic clock)."""
        self._reported_failures: set[object] = set()
        """Sessions, or the whole record, whose present failure has been logged."""

    @property
    def is_idle(self) -> bool:
        """Whether no session waits for its time to be exported."""
        return not self._pending

    def step(self, *, final: bool = False) -> bool:
        """Export one session; return whether more are due now. Raises nothing.

        ``final``, at a shutdown, exports up to ``MAX_SESSIONS``, also those whose time has not come yet.
        """
        with self._reporting_failure(RECORD_NAME, RECORD_NAME):
            if self._step(final=final):
                return True
        return False

    def _step(self, *, final: bool) -> bool:
        if not self._is_leader():
            return False
        writer = self._writer
        if writer is None:
            writer = self._writer = RecordWriter(record_directory(), self.boot_id)
            self._cursor = self._saved_cursor = export_cursor.read_cursor()
            self._pending = dict.fromkeys(self._cursor.behind, 0.0)
        more = self._find_changed_sessions(writer)
        due = self._due_sessions(final=final)
        limit = MAX_SESSIONS if final else 1
        for session_id in due[:limit]:
            self._export(writer, session_id, final=final)
        # After the exports: after a crash in between, the next exporter compares these sessions with their files again.
        self._save_cursor()
        return more or len(due) > limit or bool(self._due_sessions())

    def _find_changed_sessions(self, writer: RecordWriter) -> bool:
        """Mark sessions whose log has grown as due; return whether there may be more of them."""
        before = self._cursor
        changed, self._cursor = export_cursor.sessions_behind(before, writer.seq_of)
        for session_id in changed - self._reported_failures:
            self._pending[session_id] = 0.0
        return self._cursor.number - before.number >= export_cursor.CURSOR_BATCH

    def _due_sessions(self, *, final: bool = False) -> list[uuid.UUID]:
        now = time.monotonic()
        due = []
        for session_id, at in self._pending.items():
            may_be_early = final and session_id not in self._reported_failures
            if at <= now or may_be_early:
                due.append(session_id)
        return due

    def _export(self, writer: RecordWriter, session_id: uuid.UUID, *, final: bool) -> None:
        del self._pending[session_id]  # to the end of the queue: a session that goes on writing must not keep its place
        self._pending[session_id] = time.monotonic() + RETRY_AFTER  # stays if the export fails
        what = f"{RECORD_NAME} of session {session_id}"
        with self._reporting_failure(session_id, what, session_id=str(session_id)):
            wait = writer.export(session_id, final=final)
            self._pending[session_id] = time.monotonic() + (wait or 0.0)
            if wait is None:
                del self._pending[session_id]

    def _save_cursor(self) -> None:
        cursor = replace(self._cursor, behind=tuple(self._pending))
        if cursor != self._saved_cursor:
            export_cursor.write_cursor(cursor)
            self._saved_cursor = cursor

    def _is_leader(self) -> bool:
        """Whether this process exports: it needs the lock of the directory and that of the database."""
        if not self._lock.take():
            return False
        if connection.vendor != "postgresql":
            return True
        connection.ensure_connection()
        # PostgreSQL drops an advisory lock with its connection: after a reconnect it must be taken again.
        if self._leader_connection is not connection.connection:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_try_advisory_lock(%s)", [LEADER_LOCK_KEY])
                (is_ours,) = cursor.fetchone()
            self._leader_connection = connection.connection if is_ours else None
            self._writer = None  # another exporter may have written since, so the files are read again
        return self._leader_connection is not None

    @contextmanager
    def _reporting_failure(self, subject: object, what: str, **extra: str) -> Iterator[None]:
        """Log a failure of the block, once until it has worked again; it raises nothing."""
        try:
            yield
        except Exception as error:
            if subject in self._reported_failures:
                return
            self._reported_failures.add(subject)
            if isinstance(error, OSError):
                log.warning("%s cannot be written, trying again: %s", what, error, extra=extra)
            else:
                log.exception("%s cannot be written, trying again", what, extra=extra)
        else:
            self._reported_failures.discard(subject)

    def close(self) -> None:
        """Release both locks, so that another process can export."""
        if self._leader_connection is not None and self._leader_connection is connection.connection:
            # If the database is unavailable, the lock ends with the connection.
            with suppress(DatabaseError, InterfaceError), connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_unlock(%s)", [LEADER_LOCK_KEY])
        self._leader_connection = None
        self._lock.release()

"""The exporter: one process follows the logs of all sessions and keeps their portable record (rule 37).

Everything happens after commit, on a thread of its own, in small pieces with long rests: ingest comes
first. Only what has changed is looked at. What cannot be written is said once and tried again.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from contextlib import suppress
from typing import Final

from django.db import DatabaseError, InterfaceError, connection

from sessions_app.services.database_threads import DatabaseThread
from sessions_app.services.portable import export as portable_cursor
from sessions_app.services.portable import record as portable_record
from sessions_app.services.portable.export import ExportCursor, RecordWriter
from sessions_app.services.portable.record import ExporterLock

log = logging.getLogger(__name__)

POLL_EVERY: Final = 0.5
"""Seconds between two looks whether the database has changed."""
MIN_PAUSE: Final = 9.0
"""Rests are so many times as long as the work before them."""
MAX_PAUSE: Final = 10.0
MAX_SESSIONS: Final = 32
"""Sessions of one step."""
RETRY_AFTER: Final = 30.0
"""Seconds until the next try at what could not be written."""
FINISH_WITHIN: Final = 3.0
"""Seconds that an orderly end may spend on what is still to be written; the next start does the rest."""
RECORD_NAME: Final = "the portable record"
LEADER_LOCK_KEY: Final = 0x6B616E64
"""Key of the advisory lock of who exports, where several hosts have one database."""


class Exporter:
    """Follows the logs; used on its own thread alone."""

    def __init__(self, boot_id: str):
        self.boot_id = boot_id
        self._lock = ExporterLock()
        self._leader_connection: object = None
        self._writer: RecordWriter | None = None
        self._cursor = self._saved_cursor = ExportCursor()
        self._pending: dict[uuid.UUID, float] = {}
        """Sessions whose record is behind, and when to go on with each."""
        self._reported_failures: set[object] = set()
        """What failed and was said."""

    def step(self, *, final: bool = False) -> bool:
        """Write a bounded piece of what is missing; True when there is more to write now. Raises nothing.

        ``final``: what could wait a little is written, too.
        """
        try:
            more = self._step(final=final)
        except OSError as error:
            if self._is_first_failure(RECORD_NAME):
                log.warning("%s cannot be kept, trying again: %s", RECORD_NAME, error)
        except Exception:
            if self._is_first_failure(RECORD_NAME):
                log.exception("%s cannot be kept, trying again", RECORD_NAME)
        else:
            self._reported_failures.discard(RECORD_NAME)
            return more
        return False

    def _step(self, *, final: bool) -> bool:
        if not self._is_leader():
            return False
        writer = self._writer
        if writer is None:
            writer = self._writer = RecordWriter(portable_record.record_directory(), self.boot_id)
            self._cursor = self._saved_cursor = portable_cursor.read_cursor()
            self._pending = dict.fromkeys(self._cursor.behind, 0.0)
        more = self._find_changed_sessions(writer)
        due = self._due_sessions(final=final)
        for session_id in due[:MAX_SESSIONS]:
            self._export(writer, session_id, final=final)
        self._save_cursor()
        return more or len(due) > MAX_SESSIONS or bool(self._due_sessions())

    def _find_changed_sessions(self, writer: RecordWriter) -> bool:
        """Which sessions have something new; True when there may be more of them."""
        before = self._cursor
        changed, self._cursor = portable_cursor.sessions_behind(before, writer.seq_of)
        for session_id in changed - self._reported_failures:
            self._pending[session_id] = 0.0
        return self._cursor.number - before.number >= portable_cursor.CURSOR_BATCH

    def _due_sessions(self, *, final: bool = False) -> list[uuid.UUID]:
        now = time.monotonic()
        return [
            session_id
            for session_id, at in self._pending.items()
            if at <= now or (final and session_id not in self._reported_failures)
        ]

    def _export(self, writer: RecordWriter, session_id: uuid.UUID, *, final: bool) -> None:
        self._pending[session_id] = time.monotonic() + RETRY_AFTER
        try:
            wait = writer.export(session_id, final=final)
        except OSError as error:
            if self._is_first_failure(session_id):
                log.warning("%s of session %s cannot be kept, trying again: %s", RECORD_NAME, session_id, error)
        except Exception:  # one bad session never stops the others
            if self._is_first_failure(session_id):
                log.exception("%s of session %s cannot be kept, trying again", RECORD_NAME, session_id)
        else:
            self._reported_failures.discard(session_id)
            self._pending[session_id] = time.monotonic() + (wait or 0.0)
            if wait is None:
                del self._pending[session_id]

    def _save_cursor(self) -> None:
        cursor = self._cursor.with_behind(self._pending)
        if cursor != self._saved_cursor:
            portable_cursor.write_cursor(cursor)
            self._saved_cursor = cursor

    def _is_leader(self) -> bool:
        """Whether this process exports: one of this directory, and one of this database."""
        if not self._lock.take():
            return False
        if connection.vendor != "postgresql":
            return True
        connection.ensure_connection()
        if self._leader_connection is not connection.connection:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_try_advisory_lock(%s)", [LEADER_LOCK_KEY])
                (ours,) = cursor.fetchone()
            self._leader_connection = connection.connection if ours else None
            self._writer = None  # another may have written since
        return self._leader_connection is not None

    def _is_first_failure(self, subject: object) -> bool:
        """Whether this is to be said: once, until it works again."""
        if subject in self._reported_failures:
            return False
        self._reported_failures.add(subject)
        return True

    def close(self) -> None:
        """Let another one export."""
        if self._leader_connection is not None and self._leader_connection is connection.connection:
            # Where that is not possible, it goes with its connection.
            with suppress(DatabaseError, InterfaceError), connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_unlock(%s)", [LEADER_LOCK_KEY])
        self._leader_connection = None
        self._lock.release()


class ExportJob:
    """The exporter as a job of the supervisor."""

    def __init__(self, boot_id: str):
        self.exporter = Exporter(boot_id)
        self.thread = DatabaseThread("export")
        self._has_started = False

    async def run_step(self) -> None:
        """One step and the rest behind it."""
        self._has_started, began = True, time.monotonic()
        more = await self.thread(self.exporter.step)
        rest = min(MIN_PAUSE * (time.monotonic() - began), MAX_PAUSE)
        await asyncio.sleep(rest if more else max(rest, POLL_EVERY))

    async def close(self) -> None:
        """Write what is missing, as far as a few seconds go; then let another one export."""
        deadline = time.monotonic() + FINISH_WITHIN
        while self._has_started and await self.thread(self.exporter.step, final=True) and time.monotonic() < deadline:
            pass
        await self.thread(self.exporter.close)
        self.thread.close()

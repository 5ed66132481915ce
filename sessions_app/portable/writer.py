"""Write what the record of a session lacks: lines of its log, files of its prompts, its snapshot."""

from __future__ import annotations

import time
import uuid
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from executors_app.machine import crash_points
from sessions_app.kernel.rules.log_event import LogEvent
from sessions_app.models import Attachment, SessionEvent, TaskSession
from sessions_app.portable.record import SessionFiles, Tail, replace_file, write_draft
from sessions_app.portable.snapshot import build_snapshot, token_rows

EVENT_BATCH: Final = 500
"""Maximum number of lines of one write."""
SNAPSHOT_EVERY: Final = 2.0
"""Minimum number of seconds between two snapshots of a session."""
REMEMBERED_SESSIONS: Final = 4096
"""Sessions whose record's end is cached; for others it is read again."""


@dataclass(slots=True)
class _RememberedRecord:
    tail: Tail
    snapshot_at: float = float("-inf")
    tokens: dict[str, Any] | None = None


class RecordWriter:
    """Writes the records in one directory; the caller holds the ``ExporterLock``."""

    def __init__(self, folder: Path, boot_id: str):
        self.folder, self.boot_id = folder, boot_id
        self._known: OrderedDict[uuid.UUID, _RememberedRecord] = OrderedDict()

    def seq_of(self, session_id: uuid.UUID) -> int | None:
        """Return the end of a session's record, if it is cached."""
        known = self._known.get(session_id)
        if known is None:
            return None
        return known.tail.seq

    def export(self, session_id: uuid.UUID, *, final: bool = False) -> float | None:
        """Write a bounded part of what a record lacks; return the seconds until the next part is due, None if done.

        ``final`` writes the snapshot now, even if one was written a moment ago. Raises OSError; what was written is
        valid, and the next call continues from there.
        """
        files = SessionFiles(self.folder, session_id)
        try:
            return self._export(files, final=final)
        except BaseException:
            self._known.pop(session_id, None)  # a failed write may have changed the file: read its end again
            raise

    def _export(self, files: SessionFiles, *, final: bool) -> float | None:
        known = self._find(files)
        if known is None:
            files.remove()  # the session was deleted meanwhile
            return None
        events = _load_events(files.session_id, known.tail.seq)
        if events:
            known.tail = files.append(known.tail, events)
        # A full batch: there may be more lines, so the snapshot is not due yet.
        if len(events) == EVENT_BATCH:
            return 0.0
        wait = known.snapshot_at + SNAPSHOT_EVERY - time.monotonic()
        if wait > 0 and not final:
            return wait
        if not self._write_snapshot(files, known):
            files.remove()
            self._known.pop(files.session_id)
        return None

    def _find(self, files: SessionFiles) -> _RememberedRecord | None:
        """Return the end of the record if it belongs to this log; else set the record aside, as after a restore."""
        known = self._known.get(files.session_id)
        if known is None:
            if not TaskSession.objects.filter(id=files.session_id).exists():
                return None
            tail = files.tail()
            if tail.event is not None and not is_in_log(files.session_id, tail.event):
                files.set_aside()
                tail = Tail(None, 0)
            known = self._known[files.session_id] = _RememberedRecord(tail)
            if len(self._known) > REMEMBERED_SESSIONS:
                self._known.popitem(last=False)
        self._known.move_to_end(files.session_id)
        return known

    def _write_snapshot(self, files: SessionFiles, known: _RememberedRecord) -> bool:
        snapshot = build_snapshot(files.session_id, self.boot_id)
        if snapshot is None:
            return False
        _write_contents(files)  # before the snapshot that names them
        tokens = token_rows(files.session_id)
        if tokens["tokens"] and tokens != known.tokens:
            replace_file(write_draft(files.tokens, tokens), files.tokens)
            known.tokens = tokens
        draft = write_draft(files.snapshot, snapshot)
        crash_points.reached("export.snapshot_drafted", files.session_id)
        replace_file(draft, files.snapshot)
        crash_points.reached("export.snapshot_replaced", files.session_id)
        known.snapshot_at = time.monotonic()
        return True


def _write_contents(files: SessionFiles) -> None:
    stored = Attachment.objects.filter(session_id=files.session_id)
    for digest in files.missing_contents(stored.values_list("sha256", flat=True)):
        content = stored.filter(sha256=digest).values_list("content", flat=True).first()
        if content is not None:
            files.add_content(digest, bytes(content))


def _load_events(session_id: uuid.UUID, after: int) -> list[LogEvent]:
    rows = SessionEvent.objects.filter(session_id=session_id, seq__gt=after).order_by("seq")[:EVENT_BATCH]
    return [LogEvent(*row) for row in rows.values_list("seq", "at", "name", "payload", "once")]


def is_in_log(session_id: uuid.UUID, event: LogEvent) -> bool:
    """Return whether the session's log contains exactly this event."""
    return SessionEvent.objects.filter(session_id=session_id, seq=event.seq, name=event.name, at=event.at).exists()

"""Bringing the record of one session up to its log: what is missing behind its last line, then the snapshot."""

from __future__ import annotations

import time
import uuid
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from executors_app import crash_points
from sessions_app.domain.portable.lines import LogEvent
from sessions_app.models import SessionEvent, TaskSession
from sessions_app.services.portable import record as portable_record
from sessions_app.services.portable import snapshot as portable_snapshot
from sessions_app.services.portable.record import SessionFiles, Tail

EVENTS: Final = 500
"""Lines that are written at once."""
SNAPSHOT_EVERY: Final = 2.0
"""Seconds at least between two snapshots of a session."""
KNOWN: Final = 4096
"""Sessions whose record's end is remembered; that of any other is read again."""


@dataclass(slots=True)
class _Known:
    tail: Tail
    snapshot_at: float = float("-inf")
    tokens: dict[str, Any] | None = None


class RecordWriter:
    """Writes the records in one directory; whoever uses it holds the ``ExporterLock``."""

    def __init__(self, folder: Path, boot_id: str):
        self.folder, self.boot_id = folder, boot_id
        self._known: OrderedDict[uuid.UUID, _Known] = OrderedDict()

    def seq_of(self, session_id: uuid.UUID) -> int | None:
        """The last line of a session's record, if that is remembered."""
        known = self._known.get(session_id)
        return None if known is None else known.tail.seq

    def export(self, session_id: uuid.UUID, *, final: bool = False) -> float | None:
        """Write what a record lacks, a bounded piece; seconds until there is more to do, None where there is nothing.

        ``final``: the snapshot is not put off. Raises OSError; what was written stays true, and the next
        call goes on from there.
        """
        files = SessionFiles(self.folder, session_id)
        try:
            return self._export(files, final=final)
        except BaseException:
            self._known.pop(session_id, None)  # the file says where it is
            raise

    def _export(self, files: SessionFiles, *, final: bool) -> float | None:
        known = self._find(files)
        if known is None:
            files.remove()  # the session was deleted while we were at it
            return None
        events = _events(files.session_id, known.tail.seq)
        if events:
            known.tail = files.append(known.tail, events)
        if len(events) == EVENTS:
            return 0.0
        wait = known.snapshot_at + SNAPSHOT_EVERY - time.monotonic()
        if wait > 0 and not final:
            return wait
        if not self._write_snapshot(files, known):
            files.remove()
            self._known.pop(files.session_id)
        return None

    def _find(self, files: SessionFiles) -> _Known | None:
        """The end of the record, if it is one of this very log; that of another one is set aside (rule 37)."""
        known = self._known.get(files.session_id)
        if known is None:
            if not TaskSession.objects.filter(id=files.session_id).exists():
                return None
            tail = files.tail()
            if tail.event is not None and not is_in_log(files.session_id, tail.event):
                files.set_aside()
                tail = Tail(None, 0)
            known = self._known[files.session_id] = _Known(tail)
            if len(self._known) > KNOWN:
                self._known.popitem(last=False)
        self._known.move_to_end(files.session_id)
        return known

    def _write_snapshot(self, files: SessionFiles, known: _Known) -> bool:
        snapshot = portable_snapshot.snapshot_of(files.session_id, self.boot_id)
        if snapshot is None:
            return False
        tokens = portable_snapshot.tokens_of(files.session_id)
        if tokens["tokens"] and tokens != known.tokens:
            portable_record.put(portable_record.write_draft(files.tokens, tokens), files.tokens)
            known.tokens = tokens
        draft = portable_record.write_draft(files.snapshot, snapshot)
        crash_points.reached("export.snapshot_drafted", files.session_id)
        portable_record.put(draft, files.snapshot)
        crash_points.reached("export.snapshot_replaced", files.session_id)
        known.snapshot_at = time.monotonic()
        return True


def _events(session_id: uuid.UUID, after: int) -> list[LogEvent]:
    rows = SessionEvent.objects.filter(session_id=session_id, seq__gt=after).order_by("seq")[:EVENTS]
    return [LogEvent(*row) for row in rows.values_list("seq", "at", "name", "payload", "once")]


def is_in_log(session_id: uuid.UUID, event: LogEvent) -> bool:
    """Whether the log of a session has this very line."""
    return SessionEvent.objects.filter(session_id=session_id, seq=event.seq, name=event.name, at=event.at).exists()

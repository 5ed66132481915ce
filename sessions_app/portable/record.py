"""Files of the portable record: a log, a snapshot, a list of keys and the files of prompts for each session.

``<data>/sessions/<id>.messages.jsonl`` is append-only; ``<id>.json`` and ``<id>.tokens.json`` are replaced
atomically; ``<id>.files`` has the files that prompts carried, each named by the SHA-256 of its content.
The files have mode 0600, their directories 0700. A partial line that a crash left is cut off and written again.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson
from django.conf import settings

from executors_app.machine import crash_points
from sessions_app.kernel.rules.log_event import LogEvent
from sessions_app.portable.rules.lines import BadLine, event_to_line, line_to_event

LOG_SUFFIX: Final = ".messages.jsonl"
SNAPSHOT_SUFFIX: Final = ".json"
TOKENS_SUFFIX: Final = ".tokens.json"
FILES_SUFFIX: Final = ".files"
SUPERSEDED_FOLDER: Final = "superseded"
"""Folder of records set aside after a restore, because their log is no longer the database's."""
CURSOR_FILE: Final = ".exported"
"""File with the exporter's cursor."""
_CHUNK: Final = 64 * 1024


def record_directory() -> Path:
    """Return the directory of the record; created on first use, accessible to our own user only."""
    path = Path(settings.KANDEV_DATA_DIR) / "sessions"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.stat().st_mode & 0o077:
        path.chmod(0o700)
    return path


class ExporterLock:
    """The exclusive right to write the record; the kernel releases it when the process ends."""

    def __init__(self) -> None:
        self._descriptor: int | None = None

    def take(self) -> bool:
        """Take the lock without waiting; return whether we have it."""
        if self._descriptor is None:
            descriptor = os.open(record_directory() / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return False
            self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Release the lock."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a log: its last event and its length in bytes."""

    event: LogEvent | None
    size: int

    @property
    def seq(self) -> int:
        """``seq`` of the last event; 0 for an empty log."""
        if self.event:
            return self.event.seq
        return 0


class SessionFiles:
    """The three files of one session, and the folder with the files of its prompts."""

    def __init__(self, folder: Path, session_id: uuid.UUID):
        self.folder, self.session_id = folder, session_id
        self._superseded = folder / SUPERSEDED_FOLDER
        self.log = folder / f"{session_id}{LOG_SUFFIX}"
        self.snapshot = folder / f"{session_id}{SNAPSHOT_SUFFIX}"
        self.tokens = folder / f"{session_id}{TOKENS_SUFFIX}"
        self.contents = folder / f"{session_id}{FILES_SUFFIX}"

    def missing_contents(self, digests: Iterable[str]) -> list[str]:
        """Return those of the digests whose files are not in the record; an interrupted write leaves none."""
        try:
            known = {path.name for path in self.contents.iterdir()}
        except FileNotFoundError:
            known = set()
        return [digest for digest in digests if digest not in known]

    def add_content(self, digest: str, content: bytes) -> None:
        """Write the file of a prompt; raises OSError."""
        if not self.contents.exists():
            self.contents.mkdir(mode=0o700)
            _sync_directory(self.folder)
        path = self.contents / digest
        replace_file(_write_draft(path, content), path)

    def tail(self) -> Tail:
        """Truncate a partial line that a crash left at the end of the log; return the end. Raises OSError."""
        try:
            descriptor = os.open(self.log, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return Tail(None, 0)
        try:
            size = os.fstat(descriptor).st_size
            tail = _last_whole_line(descriptor, size)
            if tail.size < size:
                os.ftruncate(descriptor, tail.size)
                os.fsync(descriptor)
            return tail
        finally:
            os.close(descriptor)

    def append(self, tail: Tail, events: Sequence[LogEvent]) -> Tail:
        """Append events behind ``tail`` and fsync them. Raises OSError, and then nothing has changed."""
        data = b"".join(encode_line(event_to_line(event)) for event in events)
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self.log, flags, 0o600)
        try:
            _write_at(descriptor, data, tail.size)
            crash_points.reached("export.lines_written", self.session_id)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        # A new file survives a power failure only if its directory entry is on disk too.
        if not tail.size:
            _sync_directory(self.folder)
        crash_points.reached("export.lines_synced", self.session_id)
        return Tail(events[-1], tail.size + len(data))

    def set_aside(self) -> None:
        """Move the record of another log to a folder where nothing is written; people can still read it."""
        place = self._superseded / f"{self.session_id}-{uuid.uuid4().hex[:8]}"
        place.mkdir(mode=0o700, parents=True)
        for path in (self.log, self.snapshot, self.tokens, self.contents):
            if path.exists():
                path.rename(place / path.name)
        _sync_directory(self.folder)

    def remove(self) -> None:
        """Delete the session's files, also those that were set aside. Raises OSError."""
        for path in (self.log, self.snapshot, self.tokens):
            path.unlink(missing_ok=True)
        if self.contents.exists():
            shutil.rmtree(self.contents)
        for place in self._superseded.glob(f"{self.session_id}-*"):
            shutil.rmtree(place)


def forget_record(session_id: uuid.UUID) -> None:
    """Delete the record of a deleted session; an error leaves it in place."""
    try:
        SessionFiles(record_directory(), session_id).remove()
    except OSError:
        return  # nothing relies on the files being gone: the session is deleted already


def encode_line(line: dict[str, Any]) -> bytes:
    """Return a document as one line of JSON with a newline."""
    try:
        return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)
    except (orjson.JSONEncodeError, TypeError):  # lone surrogates, and numbers of more than 64 bits
        return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def write_draft(path: Path, document: dict[str, Any]) -> Path:
    """Write a replacement for ``path`` to a file beside it, fsync it, and return its path; raises OSError."""
    return _write_draft(path, json.dumps(document, indent=1, ensure_ascii=True).encode() + b"\n")


def _write_draft(path: Path, data: bytes) -> Path:
    draft = path.with_name(f".{path.name}.draft")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        _write_at(descriptor, data, 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return draft


def replace_file(draft: Path, path: Path) -> None:
    """Replace ``path`` atomically by the file that ``write_draft`` wrote. Raises OSError."""
    draft.rename(path)
    _sync_directory(path.parent)


def _write_at(descriptor: int, data: bytes, offset: int) -> None:
    """Write all of ``data``; on an error, truncate the file to ``offset`` again."""
    view, at = memoryview(data), offset
    try:
        # Whatever is behind ``offset`` is the rest of a write that a crash interrupted.
        os.ftruncate(descriptor, offset)
        while view:
            written = os.pwrite(descriptor, view, at)
            view, at = view[written:], at + written
    except OSError:
        os.ftruncate(descriptor, offset)
        raise


def _sync_directory(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _last_whole_line(descriptor: int, size: int) -> Tail:
    """Return the last valid line and the offset of its end."""
    end = size
    while end:
        start = _line_start(descriptor, end)
        line = os.pread(descriptor, end - start, start)
        try:
            if line.endswith(b"\n"):
                return Tail(line_to_event(json.loads(line)), end)
        except (ValueError, RecursionError, BadLine):
            pass
        end = start
    return Tail(None, 0)


def _line_start(descriptor: int, end: int) -> int:
    """Return the offset of the beginning of the line that ends at ``end``."""
    at = end - 1
    while at > 0:
        start = max(0, at - _CHUNK)
        found = os.pread(descriptor, at - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        at = start
    return 0

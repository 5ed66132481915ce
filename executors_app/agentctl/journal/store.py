"""The journal's segment files: blocking reads and writes, without asyncio.

``sync``, and a ``write`` that waits for the disk, are called from the writer thread; everything else from the event
loop's thread, but no ``write`` while that thread works.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
import uuid
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from executors_app.agentctl.state_files import replace_file, sync_directory, write_all
from executors_app.machine import crash_points
from executors_app.wire.line_format import (
    ASIDE,
    META_FILE,
    list_segments,
    read_epoch,
    read_meta,
    segment_path,
    survey_segment,
)

RESERVE_BYTES: Final = 1 << 20
_MARK_EVERY: Final = 64 << 10
_MAX_ASIDE: Final = 4


class JournalDamaged(Exception):
    """A line that was written can no longer be read."""


@dataclass(slots=True)
class Segment:
    """One file of the journal; ``marks`` is a sparse index: (seq, offset) of some line starts, in order."""

    first_seq: int
    path: Path
    size: int = 0
    marks: list[tuple[int, int]] = field(default_factory=list)

    def mark(self, seq: int, offset: int) -> None:
        """Add a line start to the index if the last entry is far enough back."""
        if not self.marks or offset - self.marks[-1][1] >= _MARK_EVERY:
            self.marks.append((seq, offset))


class SegmentStore:
    """The segments of one journal directory; ``seen`` is called with every line found at the start."""

    def __init__(self, directory: Path, *, segment_bytes: int, boot_id: str, seen: Callable[[dict[str, Any]], None]):
        self._directory, self._segment_bytes = directory, segment_bytes
        self._segments: list[Segment] = []
        self._fd = -1
        self.is_broken = False
        """Whether the next write must begin with the first line that is not synced."""
        self._rotate_next = False
        self._synced_end = 0
        self.next_seq = 1
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.epoch = read_epoch(directory) or ""
        readable = bool(self.epoch) and self._read_all(seen)
        # Readers see lines that are written but not synced yet, and a crash of the machine can lose those. A new epoch
        # after each boot keeps their seqs from being used for other lines.
        if not readable or read_meta(directory).get("boot_id") != boot_id:
            self._begin_epoch(boot_id)
        self._open_last()
        self.make_reserve()

    @property
    def first_seq(self) -> int:
        """The oldest stored seq, or the first one to come."""
        return self._segments[0].first_seq

    @property
    def begins_segment(self) -> bool:
        """Whether the next write begins a new segment, and so waits for the disk."""
        is_full = self._segments[-1].size >= (0 if self._rotate_next else self._segment_bytes)
        return self._fd < 0 or self.is_broken or is_full

    @property
    def total_bytes(self) -> int:
        """Total size of the segments."""
        return sum(segment.size for segment in self._segments)

    # -- opening -----------------------------------------------------------------------------

    def _read_all(self, seen: Callable[[dict[str, Any]], None]) -> bool:
        """Survey every segment; return False if the journal is damaged and needs a new epoch."""
        found = list_segments(self._directory)
        for number, (first_seq, path) in enumerate(found):
            following = found[number + 1][0] if number + 1 < len(found) else None
            segment = Segment(first_seq, path)

            def note(line: dict[str, Any], offset: int, segment: Segment = segment) -> None:
                segment.mark(line["seq"], offset)
                seen(line)

            result = survey_segment(path, first_seq, self.epoch, following, note)
            if result.damaged or (following is not None and result.next_seq != following):
                return False
            segment.size, self.next_seq = result.end, result.next_seq
            self._segments.append(segment)
        return bool(found)

    def _begin_epoch(self, boot_id: str) -> None:
        previous, self.epoch = self.epoch or "unknown", uuid.uuid4().hex
        meta = {"epoch": self.epoch, "boot_id": boot_id, "previous": previous, "since": time.time()}
        # The new epoch is on disk before an old segment moves: a crash in between leaves lines that name
        # another epoch than meta.json, never a shortened journal of the old epoch.
        replace_file(self._directory / META_FILE, orjson.dumps(meta))
        self._set_aside(previous)
        self._segments, self.next_seq = [], 1

    def _set_aside(self, previous: str) -> None:
        found = list_segments(self._directory)
        if not found:
            return
        aside = self._directory / ASIDE / previous
        aside.mkdir(mode=0o700, parents=True, exist_ok=True)
        for _, path in found:
            path.replace(aside / path.name)
        sync_directory(aside)
        sync_directory(self._directory)
        epochs = sorted(aside.parent.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        for old in epochs[:-_MAX_ASIDE]:
            shutil.rmtree(old, ignore_errors=True)

    def _open_last(self) -> None:
        if not self._segments:
            self._add_segment()
            return
        last = self._segments[-1]
        self._fd = os.open(last.path, os.O_RDWR | os.O_CLOEXEC)
        os.ftruncate(self._fd, last.size)
        os.fsync(self._fd)
        self._synced_end = last.size

    # -- writing -----------------------------------------------------------------------------

    def write(self, batch: Sequence[bytes], first_seq: int) -> None:
        """Write a batch after the last good line; raises OSError, and then none of it counts and it can be repeated."""
        if self.is_broken:
            self._abandon_segment()
        if self.begins_segment:
            if self._fd >= 0:
                self.sync()
            self.next_seq = first_seq
            self._add_segment()
        segment = self._segments[-1]
        try:
            write_all(self._fd, b"".join(batch), segment.size)
        except OSError:
            self._truncate_to_last_line()
            raise
        for seq, line in enumerate(batch, first_seq):
            segment.mark(seq, segment.size)
            segment.size += len(line)
        self.next_seq = first_seq + len(batch)

    def sync(self) -> None:
        """Sync what was written. Raises OSError; then the batch must be written again."""
        try:
            os.fdatasync(self._fd)
        except OSError:
            # The kernel has marked the pages clean, so a second fdatasync on this descriptor would report
            # success without writing them: the segment is abandoned at its last synced byte.
            self.is_broken = True
            raise
        self._synced_end = self._segments[-1].size

    def _truncate_to_last_line(self) -> None:
        try:
            os.ftruncate(self._fd, self._segments[-1].size)
        except OSError:
            self.is_broken = True

    def _abandon_segment(self) -> None:
        segment = self._segments[-1]
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, self._synced_end)
        os.close(self._fd)
        self._fd, self.is_broken = -1, False
        segment.size = self._synced_end
        segment.marks = [mark for mark in segment.marks if mark[1] < segment.size]

    def _add_segment(self) -> None:
        path = segment_path(self._directory, self.next_seq)
        path.unlink(missing_ok=True)  # an empty segment abandoned after a failed sync: its inode is not reused
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            sync_directory(self._directory)
        except OSError:
            os.close(fd)
            raise
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._synced_end, self._rotate_next = fd, 0, False
        segment = Segment(self.next_seq, path)
        if self._segments and self._segments[-1].first_seq == self.next_seq:
            self._segments[-1] = segment
        else:
            self._segments.append(segment)
        if len(self._segments) > 1:
            crash_points.reached("agentctl.segment_added")

    def free_reserve(self) -> None:
        """Delete the reserve, so that a full disk has room for the waiting lines."""
        (self._directory / "reserve").unlink(missing_ok=True)

    def start_new_segment(self) -> None:
        """Start a new segment with the next batch, so that the current one can be deleted once it is acknowledged."""
        self._rotate_next = True

    def make_reserve(self) -> bool:
        """Reserve space for the last lines on a full disk; return False if there is no space now."""
        path = self._directory / "reserve"
        if path.exists():
            return True
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return False
        try:
            os.posix_fallocate(fd, 0, RESERVE_BYTES)
        except OSError:
            path.unlink()
            return False
        finally:
            os.close(fd)
        return True

    # -- the loop ----------------------------------------------------------------------------

    def delete_through(self, seq: int) -> None:
        """Delete the segments without lines after ``seq``, but never the one being written."""
        while len(self._segments) > 1 and self._segments[1].first_seq <= seq + 1:
            dropped = self._segments.pop(0)
            with contextlib.suppress(OSError):
                dropped.path.unlink()
                crash_points.reached("agentctl.segment_dropped")

    def read(self, after: int, through: int, limit_bytes: int) -> list[bytes]:
        """Return lines from ``after + 1`` to at most ``through``, without newlines: at least one, up to the limit.

        Raises JournalDamaged if a line is missing.
        """
        segment = self._segments[bisect_right(self._segments, after + 1, key=lambda each: each.first_seq) - 1]
        start, offset = segment.marks[max(0, bisect_right(segment.marks, after + 1, key=lambda mark: mark[0]) - 1)]
        lines: list[bytes] = []
        size = 0
        with segment.path.open("rb") as file:
            file.seek(offset)
            for seq, raw in enumerate(file, start):
                if seq <= after:
                    continue
                if seq > through or not raw.endswith(b"\n"):
                    break
                lines.append(raw[:-1])
                size += len(raw)
                if size >= limit_bytes:
                    break
        if not lines:
            raise JournalDamaged(f"line {after + 1} is not in {segment.path.name}")
        return lines

    def close(self) -> None:
        """Close the current segment."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

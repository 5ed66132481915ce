"""The journal: everything the agent says and does is written to disk before anyone sees it.

Everything that has arrived is written as one batch, and synced in a thread of its own. A line may be read once it is
written; a line of ``DURABLE_KINDS``, and all after it in its batch, once it is synced. Such a line, a caller that
waits, or 64 KiB are synced at once (group commit), other lines within a second: only a failure of the machine could
lose those. A full or failing disk pauses the agent (``wait_for_room``) and loses nothing: a reserved file is deleted
to make room for the waiting lines and the last ones.

``SegmentStore`` has the files: blocking reads and writes, without asyncio. Its ``sync``, and a ``write`` that waits for
the disk, are called from the writer thread; everything else from the event loop's thread, but no ``write`` while that
thread works.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import logging
import os
import shutil
import time
import uuid
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from executors_app.agentctl.process.async_io import StateNotifier
from executors_app.agentctl.state_files import replace_file, sync_directory, write_all
from executors_app.machine import crash_points
from executors_app.machine.process.identity import kernel_boot_id
from executors_app.wire.journal_files import (
    ASIDE,
    META_FILE,
    list_segments,
    read_epoch,
    read_meta,
    segment_path,
    survey_segment,
)
from executors_app.wire.line_format import encode_line
from executors_app.wire.protocol import DURABLE_KINDS, QUOTING_KINDS, Code, JournalKind, JournalReport

logger = logging.getLogger(__name__)
UNDURABLE_LIMIT: Final = 512 << 10
"""Half of the reserve: lines that wait for a full disk, and the last lines, must fit into the reserve."""
RESERVE_BYTES: Final = 1 << 20
_SYNC_BYTES: Final = 64 << 10
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_MARK_EVERY: Final = 64 << 10
_MAX_ASIDE: Final = 4


class JournalDamaged(Exception):
    """A line that was written can no longer be read."""


@dataclass(frozen=True, slots=True)
class JournalLimits:
    """Sizes in bytes, times in seconds."""

    cap: int = 256 << 20
    """Total size of the segments at which the agent is paused."""
    segment: int = 16 << 20
    sync_delay: float = 1.0
    """Maximum seconds until lines are synced that nobody waits for."""
    retry_pause: float = 1.0
    """Seconds between two attempts on a failing disk."""
    closing: float = 5.0
    """Seconds that ``close`` waits for a failing disk."""


@dataclass(slots=True)
class _Batch:
    """Consecutive lines that are not synced yet."""

    first_seq: int
    lines: list[bytes] = field(default_factory=list)
    size: int = 0
    written: int = 0
    """Number of lines that are in the file."""
    syncs: bool = False
    """Whether it is synced as soon as it is written."""
    hidden_from: int | None = None
    """The seq of the first line that must be durable before it is shown; None if there is no such line."""

    @property
    def last_seq(self) -> int:
        return self.first_seq + len(self.lines) - 1

    def add(self, line: bytes, *, hides: bool) -> None:
        self.lines.append(line)
        self.size += len(line)
        if hides and self.hidden_from is None:
            self.hidden_from, self.syncs = self.last_seq, True

    def extend(self, later: _Batch) -> None:
        self.lines += later.lines
        self.size += later.size
        self.syncs = self.syncs or later.syncs
        self.hidden_from = self.hidden_from or later.hidden_from


class Journal:
    """Append-only lines with a ``seq``; create and use it in a running event loop.

    ``seen`` is called with every line that an earlier agentctl wrote, in order.
    """

    def __init__(
        self,
        directory: Path,
        *,
        boot_id: str = "",
        limits: JournalLimits = JournalLimits(),
        seen: Callable[[Mapping[str, Any]], None] = lambda line: None,
    ):
        segment_bytes = min(limits.segment, max(1, limits.cap // 4))
        self._limits = limits
        self._store = SegmentStore(
            directory, segment_bytes=segment_bytes, boot_id=boot_id or kernel_boot_id(), seen=seen
        )
        self._next_seq = self._store.next_seq
        self._shown = self._durable = self._next_seq - 1
        self._pending: _Batch | None = None
        """Lines that are not being written yet."""
        self._unsynced: _Batch | None = None
        """Lines that are written, or being written."""
        self._newest: _Batch | None = None
        """The last batch of which something was shown; readers mostly want its lines."""
        self._undurable = self._acked = 0
        self._failing = self._cap_reported = self._reserve_spent = False
        self.trouble = ""
        """Code of the problem that keeps lines from the disk, until the reserve is restored."""
        self.redact: Callable[[Any], Any] = lambda body: body
        """Removes from a line of ``QUOTING_KINDS`` what must not be written down."""
        self.on_full: Callable[[], None] = lambda: None
        """Called when the disk becomes full."""
        self._changes = StateNotifier()
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._is_writing = self._is_closed = self._sync_wanted = False
        self._retry: asyncio.TimerHandle | None = None
        self._sync_timer: asyncio.TimerHandle | None = None
        self._reserving: asyncio.Task[None] | None = None

    # -- writing -----------------------------------------------------------------------------

    def append(self, kind: str, /, **body: Any) -> int:
        """Append a line and return its seq. Never blocks, and accepts any values."""
        seq = self._next_seq
        if kind in QUOTING_KINDS:
            body = self.redact(body)
        line = encode_line(seq, self._store.epoch, time.time(), kind, body)
        self._next_seq += 1
        if self._pending is None:
            self._pending = _Batch(seq)
        self._pending.add(line, hides=kind in DURABLE_KINDS)
        self._undurable += len(line)
        self._wake_writer()
        return seq

    async def wait_until_durable(self, seq: int) -> None:
        """Wait until a line is synced to disk, which then happens at once."""
        if self._durable < seq:
            self._request_sync()
        await self._changes.wait_for(lambda: self._durable >= seq)

    async def wait_for_room(self) -> None:
        """Wait while more than 512 KiB are not yet durable, the disk fails, or the journal has reached its cap."""
        if self._at_cap() and not self._cap_reported:
            self._cap_reported = True
            self._warn(
                "the journal has reached its cap; the agent waits until lines are acknowledged", cap=self._limits.cap
            )
        await self._changes.wait_for(lambda: self._undurable <= UNDURABLE_LIMIT and not self.is_full)

    def ack(self, seq: int) -> None:
        """Delete the segments that contain only lines up to ``seq``, which a consumer has stored."""
        self._acked = max(self._acked, min(seq, self._shown))
        self._store.delete_through(self._acked)
        if self._newest is not None and self._unsynced is None and self._newest.last_seq <= self._acked:
            self._newest = None
        if self._cap_reported and not self._at_cap():
            self._cap_reported = False
            self._warn("the journal has room again")
        self._changes.notify()

    async def flush(self) -> None:
        """Wait until all lines are on disk; give up if the disk keeps failing."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits.closing):
                await self.wait_until_durable(self.last_seq)

    async def close(self) -> None:
        """Flush, then stop the writer. If all lines are on disk, the reserve is given back to the disk."""
        await self.flush()
        self._is_closed = True
        self._stop_sync_timer()
        if self._retry is not None:
            self._retry.cancel()
        if self._reserving is not None:
            self._reserving.cancel()
            await asyncio.gather(self._reserving, return_exceptions=True)
        await asyncio.to_thread(self._thread.shutdown)
        if self._durable == self.last_seq:
            # No line is left that could need it. The next agentctl reserves the space again.
            with contextlib.suppress(OSError):
                self._store.free_reserve()
        self._store.close()

    # -- reading -----------------------------------------------------------------------------

    @property
    def epoch(self) -> str:
        """Random id of the journal since it was created; ``seq`` counts from 1 within it."""
        return self._store.epoch

    @property
    def first_seq(self) -> int:
        """The seq of the oldest stored line."""
        return self._store.first_seq

    @property
    def last_seq(self) -> int:
        """The seq of the newest appended line; 0 before the first."""
        return self._next_seq - 1

    @property
    def shown_seq(self) -> int:
        """The seq of the newest line that may be read."""
        return self._shown

    @property
    def is_full(self) -> bool:
        """Whether the disk fails or the journal has reached its cap."""
        return self._failing or self._at_cap()

    def report(self) -> JournalReport:
        """``journal`` of ``GET /status``."""
        report: JournalReport = {"epoch": self.epoch, "first_seq": self.first_seq, "last_seq": self.last_seq}
        if self.trouble:
            return {**report, "trouble": self.trouble}
        return report

    def read(self, after: int, limit_bytes: int = 64 << 10) -> list[bytes]:
        """Return readable lines after ``after`` as raw JSON, up to about the limit; empty if there are none yet.

        ``after`` must be at least ``first_seq - 1``. Raises JournalDamaged, OSError.
        """
        if after >= self._shown:
            return []
        newest = self._newest
        if newest is None or after < newest.first_seq - 1:
            return self._store.read(after, self._shown, limit_bytes)
        lines, size = list[bytes](), 0
        for line in itertools.islice(newest.lines, after - newest.first_seq + 1, self._shown - newest.first_seq + 1):
            lines.append(line[:-1])
            size += len(line)
            if size >= limit_bytes:
                break
        return lines

    async def wait_for_lines(self, seq: int, trouble: str | None = None) -> None:
        """Wait until a line after ``seq`` may be read, or the journal's trouble differs from ``trouble``."""
        await self._changes.wait_for(lambda: self._shown > seq or trouble not in (None, self.trouble))

    # -- the writer --------------------------------------------------------------------------

    def _wake_writer(self) -> None:
        if not self._is_writing and not self._is_closed:
            self._is_writing = True
            self._loop.call_soon(self._write_next)  # and not now: what the same turn of the loop adds is one batch

    def _request_sync(self) -> None:
        self._stop_sync_timer()
        self._sync_wanted = True
        self._wake_writer()

    def _write_next(self) -> None:
        if self._is_closed:
            return
        batch, pending = self._unsynced, self._pending
        if batch is None:
            batch = pending
        elif pending is not None:
            batch.extend(pending)
        if batch is not None:
            batch.syncs = batch.syncs or self._sync_wanted or batch.size >= _SYNC_BYTES
        self._sync_wanted = False
        self._unsynced, self._pending = batch, None
        self._is_writing = batch is not None and (pending is not None or batch.syncs)
        if batch is not None and self._is_writing:
            self._write(batch)

    def _write(self, batch: _Batch) -> None:
        self._retry = None
        if batch.syncs or self._store.begins_segment:
            self._thread.submit(self._write_and_sync, batch)
            return
        # Not in the thread: the page cache takes a few lines at once, and a change of threads costs more than that.
        try:
            self._write_rest(batch)
        except (OSError, MemoryError) as error:
            self._write_later(batch, error)
        else:
            self._finish_write(batch)

    def _write_rest(self, batch: _Batch) -> Sequence[bytes]:
        """Write what is not in the file yet, and return it."""
        start = 0 if self._store.is_broken else batch.written
        if lines := batch.lines[start:]:
            self._store.write(lines, batch.first_seq + start)
            batch.written = len(batch.lines)
            crash_points.reached("agentctl.journal_written")
        return lines

    def _write_and_sync(self, batch: _Batch) -> None:
        # Written first, then shown, then synced: lines that need no durability reach their readers without
        # waiting for the disk. After a failed sync all its lines are written again, with the same seqs.
        # The thread answers with callbacks of the loop: every task or future in between is one more turn of the loop,
        # which shows beside the sync of a fast disk.
        try:
            lines = self._write_rest(batch)
            if lines and batch.hidden_from != batch.last_seq - len(lines) + 1:
                self._loop.call_soon_threadsafe(self._show_written, batch)
            self._store.sync()
        except (OSError, MemoryError) as error:
            self._loop.call_soon_threadsafe(self._write_later, batch, error)
        except Exception:
            logger.critical("the journal's writer has stopped because of a bug in agentctl", exc_info=True)
            raise
        else:
            crash_points.reached("agentctl.journal_synced")
            self._loop.call_soon_threadsafe(self._finish_sync, batch)

    def _write_later(self, batch: _Batch, error: OSError | MemoryError) -> None:
        self._handle_failure(error)
        if not self._is_closed:
            self._retry = self._loop.call_later(self._limits.retry_pause, self._write, batch)

    def _finish_write(self, batch: _Batch) -> None:
        self._handle_recovery()
        self._show_written(batch)
        if self._sync_timer is None:
            self._sync_timer = self._loop.call_later(self._limits.sync_delay, self._request_sync)
        self._is_writing = False
        if self._pending is not None or self._sync_wanted:
            self._wake_writer()

    def _finish_sync(self, batch: _Batch) -> None:
        self._stop_sync_timer()
        self._undurable -= batch.size
        self._unsynced, self._newest = None, batch
        self._shown = self._durable = batch.last_seq
        self._handle_recovery()
        self._changes.notify()
        self._write_next()

    def _stop_sync_timer(self) -> None:
        if self._sync_timer is not None:
            self._sync_timer.cancel()
            self._sync_timer = None

    def _show_written(self, batch: _Batch) -> None:
        self._newest = batch
        through = batch.last_seq
        if batch.hidden_from is not None:
            through = batch.hidden_from - 1
        self._shown = max(self._shown, through)
        self._changes.notify()

    def _handle_failure(self, error: OSError | MemoryError) -> None:
        reason: str | None = "out of memory"
        is_full = False
        if isinstance(error, OSError):
            reason, is_full = error.strerror, error.errno in _NO_ROOM
        self.trouble = Code.DISK_FAILING
        if is_full:
            self.trouble = Code.DISK_FULL
        if not self._failing:
            self._failing = True
            logger.error("the journal cannot be written: %s", reason)
            self._warn("the journal could not be written; the agent waited", error=reason)
            self._changes.notify()
            if is_full:
                self.on_full()
        if is_full and not self._reserve_spent:
            self._reserve_spent = True
            self._store.free_reserve()
            self._reserving = asyncio.create_task(self._restore_reserve(), name="reserve")
        if is_full:
            # Free unneeded space: with a new segment, the current one can be deleted as well once it is acknowledged.
            self._store.start_new_segment()
            self._store.delete_through(self._acked)

    async def _restore_reserve(self) -> None:
        while self._failing or not self._store.make_reserve():  # noqa: ASYNC110  (nothing signals free space)
            await asyncio.sleep(self._limits.retry_pause)
        self._reserve_spent, self.trouble = False, ""
        self._changes.notify()

    def _handle_recovery(self) -> None:
        if self._failing:
            self._failing = False
            logger.warning("the journal is written again")
            self._warn("the journal is written again")
            if not self._reserve_spent:
                self.trouble = ""

    def _at_cap(self) -> bool:
        return self._store.total_bytes >= self._limits.cap

    def _warn(self, text: str, **data: Any) -> None:
        self.append(JournalKind.LOG, level="warning", text=text, data=data)


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

"""The journal: everything the agent says and does becomes a line on the disk before anybody sees it.

One writer thread takes whatever has come in meanwhile as one batch: write, then fdatasync. A line
is shown once it is written, a line of ``DURABLE_KINDS`` once it is synced; a full or failing disk
holds the agent back (``room``) and loses nothing: a reserve is given up for what waits and the last words.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from executors_app import crash_points
from executors_app.agentctl.journal.line_format import encode_line
from executors_app.agentctl.journal.store import SegmentStore
from executors_app.agentctl.process.async_io import StateNotifier
from executors_app.agentctl.process.identity import kernel_boot_id
from executors_app.agentctl.protocol import DURABLE_KINDS, QUOTING_KINDS, Code, JournalKind, JournalReport

logger = logging.getLogger(__name__)

UNDURABLE_LIMIT: Final = 512 << 10
"""Half of the reserve: what waits for a full disk must fit into it, with the last words."""
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@dataclass(frozen=True, slots=True)
class JournalLimits:
    """Sizes in bytes, times in seconds."""

    cap: int = 256 << 20
    """What the segments may take before the agent is held back."""
    segment: int = 16 << 20
    retry_pause: float = 1.0
    """Between two tries on a failing disk."""
    closing: float = 5.0
    """How long ``close`` waits for a failing disk."""


@dataclass(slots=True)
class _Batch:
    first_seq: int
    lines: list[bytes] = field(default_factory=list)
    size: int = 0
    shown_when_written: int = 0
    """The last seq in front of the first line that must be durable before it is shown."""


class Journal:
    """Append-only lines with ``seq``; made and used inside a running loop.

    ``seen`` is told of every line that an earlier agentctl left, in order.
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
        self._next = self._store.next_seq
        self._shown = self._durable = self._next - 1
        self._pending: _Batch | None = None
        self._undurable = self._acked = 0
        self._failing = self._told_of_cap = self._reserve_spent = False
        self.trouble = ""
        """Code of what keeps lines from the disk, until there is room for last words again."""
        self.redact: Callable[[Any], Any] = lambda body: body
        """Takes out of a line of ``QUOTING_KINDS`` what is not to be written down."""
        self.on_full: Callable[[], None] = lambda: None
        """Called when the disk turns out to be full."""
        self._bell, self._work = StateNotifier(), asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._writer = asyncio.create_task(self._write_for_ever(), name="journal")
        self._reserving: asyncio.Task[None] | None = None

    # -- writing -----------------------------------------------------------------------------

    def append(self, kind: str, /, **body: Any) -> int:
        """Take a line in and return its seq; never blocks and never raises on odd values."""
        seq = self._next
        if kind in QUOTING_KINDS:
            body = self.redact(body)
        line = encode_line(seq, self.epoch, time.time(), kind, body)
        self._next += 1
        batch = self._pending
        if batch is None:
            batch = self._pending = _Batch(seq, shown_when_written=-1)
        if kind in DURABLE_KINDS and batch.shown_when_written < 0:
            batch.shown_when_written = seq - 1
        batch.lines.append(line)
        batch.size += len(line)
        self._undurable += len(line)
        self._work.set()
        return seq

    async def durable(self, seq: int) -> None:
        """Wait until a line is on the disk."""
        await self._bell.until(lambda: self._durable >= seq)

    async def room(self) -> None:
        """Wait while more than 512 KiB is not yet durable, the disk fails, or the journal is at its cap."""
        if self._at_cap() and not self._told_of_cap:
            self._told_of_cap = True
            self._say("the journal is at its cap; the agent waits until lines are acknowledged", cap=self._limits.cap)
        await self._bell.until(lambda: self._undurable <= UNDURABLE_LIMIT and not self.full)

    def ack(self, seq: int) -> None:
        """A consumer keeps everything up to ``seq``: segments wholly below it go."""
        self._acked = max(self._acked, min(seq, self._shown))
        self._store.delete_through(self._acked)
        if self._told_of_cap and not self._at_cap():
            self._told_of_cap = False
            self._say("the journal has room again")
        self._bell.ring()

    async def flush(self) -> None:
        """Bring what was taken in to the disk; gives up on a disk that keeps failing."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits.closing):
                await self.durable(self.last_seq)

    async def close(self) -> None:
        """Flush, then stop."""
        await self.flush()
        tasks = [task for task in (self._writer, self._reserving) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(self._thread.shutdown)
        self._store.close()

    # -- reading -----------------------------------------------------------------------------

    @property
    def epoch(self) -> str:
        """Drawn when the journal is made; ``seq`` counts from 1 in it."""
        return self._store.epoch

    @property
    def first_seq(self) -> int:
        """The oldest line that is kept."""
        return self._store.first_seq

    @property
    def last_seq(self) -> int:
        """The newest line taken in; 0 before the first."""
        return self._next - 1

    @property
    def shown_seq(self) -> int:
        """The newest line that may be read."""
        return self._shown

    @property
    def full(self) -> bool:
        """The disk fails, or the journal is at its cap."""
        return self._failing or self._at_cap()

    def report(self) -> JournalReport:
        """``journal`` of ``GET /status``."""
        report: JournalReport = {"epoch": self.epoch, "first_seq": self.first_seq, "last_seq": self.last_seq}
        return {**report, "trouble": self.trouble} if self.trouble else report

    def read(self, after: int, limit_bytes: int = 64 << 10) -> list[bytes]:
        """Shown lines behind ``after`` as raw JSON, up to about the limit; empty where there are none yet.

        ``after`` must not lie in front of ``first_seq - 1``. Raises JournalDamaged and OSError.
        """
        return self._store.read(after, self._shown, limit_bytes) if after < self._shown else []

    async def wait_beyond(self, seq: int, trouble: str | None = None) -> None:
        """Wait until a line behind ``seq`` may be read, or ``trouble`` is no longer the journal's."""
        await self._bell.until(lambda: self._shown > seq or trouble not in (None, self.trouble))

    # -- the writer --------------------------------------------------------------------------

    async def _write_for_ever(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            batch, self._pending = self._pending, None
            if batch is None:
                continue
            await self._bring_to_disk(batch)
            self._undurable -= batch.size
            self._shown = self._durable = batch.first_seq + len(batch.lines) - 1
            self._recovered()
            self._bell.ring()

    async def _bring_to_disk(self, batch: _Batch) -> None:
        while True:
            try:
                await self._in_thread(self._store.write, batch.lines, batch.first_seq)
                crash_points.reached("agentctl.journal_written")
                self._show_written(batch)
                await self._in_thread(self._store.sync)
                crash_points.reached("agentctl.journal_synced")
            except (OSError, MemoryError) as error:
                self._failed(error)
                await asyncio.sleep(self._limits.retry_pause)
            else:
                return

    def _show_written(self, batch: _Batch) -> None:
        through = batch.shown_when_written
        self._shown = max(self._shown, batch.first_seq + len(batch.lines) - 1 if through < 0 else through)
        self._bell.ring()

    def _failed(self, error: OSError | MemoryError) -> None:
        reason = error.strerror if isinstance(error, OSError) else "out of memory"
        is_full = isinstance(error, OSError) and error.errno in _NO_ROOM
        self.trouble = Code.DISK_FULL if is_full else Code.DISK_FAILING
        if not self._failing:
            self._failing = True
            logger.error("the journal cannot be written: %s", reason)
            self._say("the journal could not be written; the agent waited", error=reason)
            self._bell.ring()
            if is_full:
                self.on_full()
        if is_full and not self._reserve_spent:
            self._reserve_spent = True
            self._store.free_reserve()
            self._reserving = asyncio.create_task(self._reserve_again(), name="reserve")
        if is_full:
            self._store.start_new_segment()
            self._store.delete_through(self._acked)

    async def _reserve_again(self) -> None:
        while self._failing or not self._store.make_reserve():  # noqa: ASYNC110  (a disk rings no bell)
            await asyncio.sleep(self._limits.retry_pause)
        self._reserve_spent, self.trouble = False, ""
        self._bell.ring()

    def _recovered(self) -> None:
        if self._failing:
            self._failing = False
            logger.warning("the journal is written again")
            self._say("the journal is written again")
            if not self._reserve_spent:
                self.trouble = ""

    def _at_cap(self) -> bool:
        return self._store.total_bytes >= self._limits.cap

    def _say(self, text: str, **data: Any) -> None:
        self.append(JournalKind.LOG, level="warning", text=text, data=data)

    async def _in_thread(self, function: Callable[..., None], *arguments: Any) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

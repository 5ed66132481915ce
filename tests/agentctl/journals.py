"""Journals for tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import orjson

from executors_app.agentctl.journal import Journal, JournalLimits
from executors_app.wire.journal_files import list_segments, read_lines

QUICK = JournalLimits(retry_pause=0.02, closing=1)


@asynccontextmanager
async def opened(directory: Path, **options: Any) -> AsyncIterator[Journal]:
    """Open a journal and close it at the end."""
    journal = Journal(directory, **{"limits": QUICK, **options})
    try:
        yield journal
    finally:
        await journal.close()


async def write_lines(directory: Path, count: int, **options: Any) -> str:
    """Write a journal with that many lines, close it and return its epoch."""
    async with opened(directory, **options) as journal:
        for number in range(count):
            journal.append("message.agent", text=f"line {number}")
        return journal.epoch


@contextmanager
def held_syncs(journal: Journal) -> Iterator[asyncio.Event]:
    """Block the journal's syncs until the event is set, or the block ends, as a slow disk would."""
    release, loop = asyncio.Event(), asyncio.get_running_loop()
    sync = journal._store.sync

    def held() -> None:
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result()
        sync()

    journal._store.sync = held  # type: ignore[method-assign]
    try:
        yield release
    finally:
        release.set()  # otherwise a failed test could never close its journal


def seqs(directory: Path, after: int = 0, epoch: str | None = None) -> list[int]:
    """Return the ``seq`` of every line that a reader of the files finds."""
    return [line["seq"] for line in read_lines(directory, after, epoch)]


def shown(journal: Journal, after: int = 0) -> Iterator[dict[str, Any]]:
    """Yield every line that the journal shows after ``after``."""
    while lines := journal.read(after):
        for raw in lines:
            line = orjson.loads(raw)
            after = line["seq"]
            yield line


def last_segment(directory: Path) -> Path:
    """Return the segment that the journal appends to."""
    return list_segments(directory)[-1][1]

"""Appending to a journal beside a bare write and fdatasync of the same batches."""

from __future__ import annotations

import asyncio
from pathlib import Path
from statistics import median

from executors_app.agentctl.journal import Journal
from executors_app.agentctl.journal_lines import encode_line
from executors_app.agentctl.protocol import Kind
from tests.bench.bare import append_durably, appending
from tests.bench.figures import Figure, in_turn

TEXT = "a few words that an agent says, about as long as a line of its answer"


def appends(home: Path, batch: int, rounds: int) -> Figure:
    """Lines a second until durable, ``batch`` at a time: medians, as a disk has its moods."""
    seconds, floor = asyncio.run(_beside_writes(home / f"journal-{batch}", batch, rounds))
    row = f"journal, {batch} {'line' if batch == 1 else 'lines'} until durable"
    return Figure(row, seconds, "write + fdatasync", floor, unit="lines/s", count=batch)


async def _beside_writes(home: Path, batch: int, rounds: int) -> list[float]:
    journal = Journal(home)
    line = encode_line(1, journal.epoch, 1700000000.123456, Kind.MESSAGE_AGENT, {"text": TEXT})

    async def append() -> None:
        for _ in range(batch):
            seq = journal.append(Kind.MESSAGE_AGENT, text=TEXT)
        await journal.durable(seq)

    with appending(home / "bare") as file:
        try:
            return list(map(median, await in_turn(rounds, append, lambda: append_durably(file, line * batch))))
        finally:
            await journal.close()

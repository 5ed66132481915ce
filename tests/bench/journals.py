"""Appending to a journal, directly and from an agent's pipe, beside bare writes and fdatasyncs."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any, cast

import orjson

from executors_app.agentctl.drivers.acp_updates import update_to_journal_line
from executors_app.agentctl.drivers.json_rpc import JsonRpcConnection
from executors_app.agentctl.journal import Journal
from executors_app.agentctl.process.agent_process import AgentProcess
from executors_app.agentctl.process.async_io import CHUNK_BYTES, PipeReader
from executors_app.wire.line_format import encode_line
from executors_app.wire.protocol import JournalKind
from tests.bench.bare import append_durably, appending
from tests.bench.figures import Figure, in_turn

TEXT = "a few words that an agent says, about as long as a line of its answer"
UPDATE = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": TEXT}}
AGENT_LINE = {"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "bench", "update": UPDATE}}
FROM_AGENT_LIMIT = 2.0
THREAD_LIMIT = 1.5


def appends(home: Path, batch: int, rounds: int, *, limited: bool) -> list[Figure]:
    """Measure durable lines per second in batches of ``batch``: medians, as disks vary.

    No event loop may wait for a disk, so a single line is also compared with a bare write and fdatasync in a thread.
    """
    seconds, floor, threaded = asyncio.run(_beside_writes(home / f"journal-{batch}", batch, rounds))
    row = f"journal, {batch} {'line' if batch == 1 else 'lines'} until durable"
    figures = [Figure(row, seconds, "write + fdatasync", floor, unit="lines/s", count=batch)]
    if batch == 1:
        limit = THREAD_LIMIT if limited else None
        figures.append(Figure(row, seconds, "the same in a loop's thread", threaded, unit="lines/s", limit=limit))
    return figures


async def _beside_writes(home: Path, batch: int, rounds: int) -> list[float]:
    journal = Journal(home)
    line = encode_line(1, journal.epoch, 1700000000.123456, JournalKind.MESSAGE_AGENT, {"text": TEXT})

    async def append() -> None:
        for _ in range(batch):
            seq = journal.append(JournalKind.MESSAGE_AGENT, text=TEXT)
        await journal.wait_until_durable(seq)

    def bare() -> None:
        append_durably(file, line * batch)

    with appending(home / "bare") as file:
        try:
            return list(map(median, await in_turn(rounds, append, bare, lambda: asyncio.to_thread(bare))))
        finally:
            await journal.close()


def from_the_agent(home: Path, lines: int, rounds: int, *, limited: bool) -> Figure:
    """Measure until all that an agent writes to stdout is durable; beside a bare read, parse and append."""
    seconds, floor = asyncio.run(_beside_bare_pipe(home / f"spoken-{lines}", lines, rounds))
    row, limit = f"{lines:,} lines of an agent, durable", FROM_AGENT_LIMIT if limited else None
    return Figure(row, seconds, "bare read, parse, append", floor, unit="lines/s", count=lines, limit=limit)


async def _beside_bare_pipe(home: Path, lines: int, rounds: int) -> list[float]:
    journal = Journal(home)
    recording = home / "said"
    recording.write_bytes((orjson.dumps(AGENT_LINE) + b"\n") * lines)

    async def ours() -> None:
        with _piped(recording) as descriptor:
            await _read_pipe(journal, PipeReader(descriptor))

    def bare(file: int) -> None:
        with _piped(recording) as descriptor:
            _copy(descriptor, file)

    with appending(home / "bare") as file:
        try:
            taken = await in_turn(rounds, ours, lambda: bare(file))
            assert journal.last_seq == lines * rounds
        finally:
            await journal.close()
    return list(map(min, taken))


async def _read_pipe(journal: Journal, reader: PipeReader) -> None:
    """Read the pipe as agentctl does."""

    def heard(method: str, params: Any) -> None:
        kind, body = update_to_journal_line(params["update"])
        journal.append(kind, **body)

    async def wait_for_room() -> None:
        journal.ack(journal.shown_seq)  # the control plane keeps up, one batch at a time
        await journal.wait_for_room()

    async def refused(method: str, params: Any) -> None:
        raise NotImplementedError(method)

    process = cast(AgentProcess, SimpleNamespace(stdout=reader))  # the connection only reads
    wire = JsonRpcConnection(
        process, on_notification=heard, on_request=refused, room=wait_for_room, record=journal.append
    )
    wire.start_reading()
    await wire.closed.wait()
    await journal.wait_until_durable(journal.last_seq)


def _copy(descriptor: int, file: int) -> None:
    rest = b""
    while data := os.read(descriptor, CHUNK_BYTES):
        *whole, rest = (rest + data).split(b"\n")
        parsed = [orjson.loads(line) for line in whole]
        append_durably(file, b"".join(orjson.dumps(one, option=orjson.OPT_APPEND_NEWLINE) for one in parsed))


@contextmanager
def _piped(recording: Path) -> Iterator[int]:
    """Yield the reading end of a pipe into which a process writes a whole file."""
    with subprocess.Popen(["cat", str(recording)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield process.stdout.fileno()

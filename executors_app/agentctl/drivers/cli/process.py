"""One process of a command line agent: its JSON lines one after the other, and no process left at its end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from executors_app.agentctl.drivers import Host, StartRequest
from executors_app.agentctl.drivers.json_rpc import decode_message
from executors_app.agentctl.journal.filters import RateLimitedLog
from executors_app.agentctl.process.agent_process import AgentProcess
from executors_app.agentctl.process.async_io import LINE_LIMIT, LineSplitter
from executors_app.agentctl.protocol import JournalKind

_SILENT_AGENT: Final = 1.0
"""Seconds it may live on after the end of its output."""
_STOP_GRACE: Final = 2.0
_OUTPUT_DRAIN_TIMEOUT: Final = 5.0
"""Seconds that a stop waits for the journal to take in the last lines."""
_OUTPUT_LIMIT: Final = 64 * 1024
_WORDS: Final = 1000

MessageHandler = Callable[[Mapping[str, Any]], Awaitable[None]]


class CliProcess:
    """A process and the reading of its stdout; ``ended`` is set when nothing of it is left."""

    def __init__(self, process: AgentProcess, handle: MessageHandler, host: Host):
        self.ended = asyncio.Event()
        self.exit_code: int | None = None
        self._process, self._handle, self._host = process, handle, host
        self._unreadable = RateLimitedLog(host.record, "stdout", level="warning")
        self._read_all = asyncio.Event()
        self._reading = asyncio.create_task(self._read(), name="agent's lines")
        self._exit_watcher = asyncio.create_task(self._watch_exit(), name="agent's burial")

    @classmethod
    async def spawn(
        cls, argv: Sequence[str], request: StartRequest, marker: Mapping[str, str], host: Host, handle: MessageHandler
    ) -> CliProcess:
        """Start ``argv`` in the place of ``request``; each JSON object it prints goes to ``handle``. SpawnFailed."""
        return cls(await AgentProcess.spawn(argv, request.env, request.cwd, marker, host.record), handle, host)

    @property
    def pid(self) -> int | None:
        """Of the agent itself, while it lives."""
        return self._process.pid if self._process.is_running else None

    async def write(self, data: bytes) -> None:
        """Write to its stdin; PipeStuck, OSError."""
        await self._process.write(data)

    def end_input(self) -> None:
        """Let it read the end of its stdin."""
        self._process.end_input()

    def exit_description(self) -> str:
        """How it ended, for a sentence, with its last words."""
        tail = self.output_tail()
        return f"{self._process.exit_description()}: {tail}" if tail else self._process.exit_description()

    def output_tail(self) -> str:
        """The last lines of its stderr."""
        return self._process.output_tail()[-_WORDS:]

    async def stop(self, grace: float) -> int | None:
        """End the whole tree and wait until its last lines are heard; the exit code. May be called again."""
        await self._process.stop(grace)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_OUTPUT_DRAIN_TIMEOUT):
                await self.ended.wait()
        self._reading.cancel()
        await self.ended.wait()
        return self.exit_code

    async def _read(self) -> None:
        splitter = LineSplitter()
        try:
            while data := await self._next_bytes():
                skipped = splitter.skipped
                for line in splitter.feed(data):
                    await self._receive(line)
                if splitter.skipped > skipped:
                    self._unreadable.put(b"a line was skipped: it is too long", limit=LINE_LIMIT)
                await asyncio.sleep(0)
            await self._receive(splitter.torn())
            self._unreadable.flush()
        finally:
            self._read_all.set()

    async def _next_bytes(self) -> bytes:
        await self._host.wait_for_room()
        return await self._process.read()

    async def _receive(self, line: bytes) -> None:
        if not line.strip():
            return
        message = decode_message(line)
        if not isinstance(message, dict):
            self._puzzle(line, "no JSON object")
            return
        try:
            await self._handle(message)
        except Exception as error:  # noqa: BLE001  (one odd line must not end the conversation)
            self._puzzle(line, f"not understood: {error!r}")

    def _puzzle(self, line: bytes, reason: str) -> None:
        self._unreadable.put(line[:200], reason=reason, bytes=len(line))

    async def _watch_exit(self) -> None:
        await self._read_all.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SILENT_AGENT):
                await self._process.wait()
        self.exit_code = await self._process.stop(_STOP_GRACE)
        await self._process.close()
        if survivors := self._process.survivors:
            text = "some of the agent's processes could not be ended"
            self._host.record(JournalKind.LOG, level="error", text=text, data={"pids": survivors})
        self.ended.set()


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """What a command printed that was run for its answer."""

    text: str
    exit_code: int | None
    stderr: str
    """The last lines of its stderr."""


async def run_command(
    argv: Sequence[str], request: StartRequest, marker: Mapping[str, str], host: Host
) -> CommandOutput:
    """Run a command to its end, with nothing to read; SpawnFailed. It is gone when this returns or raises."""
    process = await AgentProcess.spawn(argv, request.env, request.cwd, marker, host.record)
    try:
        process.end_input()
        printed = b""
        while data := await process.read():
            printed = (printed + data)[:_OUTPUT_LIMIT]
        exit_code = await process.wait()
    finally:
        await asyncio.shield(_end_process(process))
    return CommandOutput(printed.decode("utf-8", "replace").strip(), exit_code, process.output_tail()[-_WORDS:])


async def _end_process(process: AgentProcess) -> None:
    await process.stop(0)
    await process.close()


async def wait_for_any(*events: asyncio.Event) -> None:
    """Until one of the events is set."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()

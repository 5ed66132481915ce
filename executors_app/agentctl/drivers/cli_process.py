"""One process of a command-line agent: handle its JSON lines in order, and leave no process behind."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from executors_app.agentctl.drivers import Host, StartRequest
from executors_app.agentctl.drivers.json_rpc import decode_message
from executors_app.agentctl.process.agent_process import AgentProcess
from executors_app.agentctl.process.async_io import LINE_LIMIT, LineSplitter
from executors_app.wire.line_format import is_too_complex
from executors_app.wire.log_rate_limit import RateLimitedLog

_OUTPUT_DRAIN_TIMEOUT: Final = 5.0
"""Seconds that a stop waits for the journal to accept the last lines."""
_OUTPUT_LIMIT: Final = 64 * 1024
_WORDS: Final = 1000
_END_OF_TURN: Final = re.compile(rb'\s*\{\s*"type"\s*:\s*"result"')
"""How the line begins with which a turn ends."""

MessageHandler = Callable[[Mapping[str, Any]], Awaitable[None]]


class CliProcess:
    """A process whose stdout is read line by line; ``ended`` is set when nothing of it is left but what is kept."""

    def __init__(self, process: AgentProcess, handle: MessageHandler, host: Host, *, keep_descendants: bool = False):
        self._keeps_descendants = keep_descendants
        self.ended = asyncio.Event()
        self.exit_code: int | None = None
        self._process, self._handle, self._host = process, handle, host
        self._unreadable = RateLimitedLog(host.record, "stdout", level="warning")
        self._read_all = asyncio.Event()
        self._reading = asyncio.create_task(self._read(), name="agent's lines")
        self._exit_watcher = asyncio.create_task(self._watch_exit(), name="agent's burial")

    @classmethod
    async def spawn(
        cls,
        argv: Sequence[str],
        request: StartRequest,
        marker: Mapping[str, str],
        host: Host,
        handle: MessageHandler,
        *,
        keep_descendants: bool = False,
    ) -> CliProcess:
        """Start ``argv`` with environment and cwd of ``request``; raises SpawnFailed.

        Each JSON object that it prints is passed to ``handle``. With ``keep_descendants``, what it started and what
        outlives its own exit runs on until ``stop``, also after ``ended``.
        """
        process = await AgentProcess.spawn(
            argv, request.env, request.cwd, marker, host.record, keep_descendants=keep_descendants
        )
        return cls(process, handle, host, keep_descendants=keep_descendants)

    @property
    def pid(self) -> int | None:
        """The agent's own pid while its process is running."""
        has_ended = self._keeps_descendants and self._process.has_exited
        if self._process.is_running and not has_ended:
            return self._process.pid
        return None

    @property
    def guard_pid(self) -> int | None:
        """The pid of its guard; None if nothing is left of the agent and what it has started."""
        if self._process.is_running:
            return self._process.guard_pid
        return None

    async def write(self, data: bytes) -> None:
        """Write to stdin; raises PipeStuck, OSError."""
        await self._process.stdin.write(data)

    def end_input(self) -> None:
        """Close stdin."""
        self._process.stdin.close()

    def exit_description(self) -> str:
        """Describe the exit for a message, with the last lines of stderr."""
        tail = self.output_tail()
        if tail:
            return f"{self._process.exit_description()}: {tail}"
        return self._process.exit_description()

    def output_tail(self) -> str:
        """Return the last lines of stderr."""
        return self._process.output_tail()[-_WORDS:]

    async def stop(self, grace: float) -> int | None:
        """End the whole tree, wait until the last lines are handled, and return the exit code. May be repeated."""
        await self._process.stop(grace)
        # Limited, because a full journal would never accept the last lines.
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
                    await self._end_unread_turn(splitter.skipped_start, "it is too long")
            await self._receive(splitter.torn())
            self._unreadable.flush()
        finally:
            self._read_all.set()

    async def _next_bytes(self) -> bytes:
        # While the journal has no room, the output stays in the pipe, which pauses the agent once it is full.
        await self._host.wait_for_room()
        return await self._process.stdout.read()

    async def _receive(self, line: bytes) -> None:
        if not line.strip():
            return
        if is_too_complex(line):
            self._puzzle(line, "too many values")
            await self._end_unread_turn(line, "it has too many values")
            return
        message = decode_message(line)
        if not isinstance(message, dict):
            self._puzzle(line, "not a JSON object")
            await self._end_unread_turn(line, "it is not valid JSON, or nested too deeply")
            return
        await self._handle_or_log(message, line)

    async def _handle_or_log(self, message: Mapping[str, Any], line: bytes) -> None:
        try:
            await self._handle(message)
        except Exception as error:  # noqa: BLE001  (one odd line must not end the conversation)
            self._puzzle(line, f"not understood: {error!r}")

    async def _end_unread_turn(self, line: bytes, reason: str) -> None:
        """Fail the turn if it ends with this line, which cannot be read: its end never arrives otherwise."""
        if _END_OF_TURN.match(line):
            text = f"the agent sent the end of its turn in a form that cannot be read: {reason}"
            failed = {"type": "result", "subtype": "error_unreadable", "is_error": True, "errors": [text]}
            await self._handle_or_log(failed, line)

    def _puzzle(self, line: bytes, reason: str) -> None:
        self._unreadable.put(line[:200], reason=reason, bytes=len(line))

    async def _watch_exit(self) -> None:
        await self._read_all.wait()
        self.exit_code = await self._process.finish()
        self.ended.set()


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """The output of a command that was run to its end."""

    text: str
    exit_code: int | None
    stderr: str
    """The last lines."""


async def run_command(
    argv: Sequence[str], request: StartRequest, marker: Mapping[str, str], host: Host
) -> CommandOutput:
    """Run a command to its end without input, and return its output; raises SpawnFailed.

    No process is left when this returns or raises.
    """
    process = await AgentProcess.spawn(argv, request.env, request.cwd, marker, host.record)
    try:
        process.stdin.close()
        printed = b""
        while data := await process.stdout.read():
            printed = (printed + data)[:_OUTPUT_LIMIT]
        exit_code = await process.wait()
    finally:
        await asyncio.shield(_end_process(process))  # a cancelled start must not leave the process behind
    return CommandOutput(printed.decode("utf-8", "replace").strip(), exit_code, process.output_tail()[-_WORDS:])


async def _end_process(process: AgentProcess) -> None:
    await process.stop(0)
    await process.close()


async def wait_for_any(*events: asyncio.Event) -> None:
    """Wait until one of the events is set."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()

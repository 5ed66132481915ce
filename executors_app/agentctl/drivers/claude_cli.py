"""The driver for Claude Code's command line: one ``claude -p`` process for many turns, ``stream-json`` both ways.

The conversation's id is the one that the agent reports at the beginning and end of a turn, never the one that it was
started with.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from executors_app.agentctl.drivers import Driver, Host, StartFailed, StartRequest, StartResult, TurnFailed
from executors_app.agentctl.drivers.cli_events import TurnReader
from executors_app.agentctl.drivers.cli_process import CliProcess, wait_for_any
from executors_app.agentctl.drivers.failures import BLANK_STOP_REASON, failure_code, matches_gone_pattern
from executors_app.agentctl.drivers.json_rpc import AgentGone, encode_message
from executors_app.agentctl.drivers.prompt_content import prompt_text, split_images
from executors_app.agentctl.drivers.stream_json import (
    ControlError,
    ControlProtocol,
    StreamJsonReader,
    mcp_servers_by_name,
)
from executors_app.agentctl.process.agent_process import SpawnFailed
from executors_app.agentctl.process.async_io import PipeStuck
from executors_app.wire.protocol import Code, JournalKind

_FAILED_GRACE: Final = 0.5
_HEARS_WITHIN: Final = 4.0
"""Seconds to wait for the answer to an interrupt."""
_STREAM_JSON_OPTIONS: Final = ("--input-format", "stream-json", "--output-format", "stream-json", "--verbose")
_PERMISSION_OPTIONS: Final = ("--permission-prompt-tool", "stdio")


def create(host: Host, marker: Mapping[str, str]) -> Driver:
    """Return a driver for successive processes of one agent; ``marker`` is added to their environment."""
    return ClaudeDriver(host, marker)


def build_command(request: StartRequest) -> list[str]:
    """Return the command that starts a new conversation, or resumes the one of the token."""
    command = [*request.argv, "-p", *_STREAM_JSON_OPTIONS, *_PERMISSION_OPTIONS]
    if request.model:
        command.append(f"--model={request.model}")
    if request.strategy != "native":
        return [*command, f"--session-id={uuid.uuid4()}"]
    command.append(f"--resume={request.resume_token}")  # one argument: no token can be read as an option
    if request.last_message_uuid:
        command.append(f"--resume-session-at={request.last_message_uuid}")
    return command


class ClaudeDriver:
    """See ``Driver``."""

    def __init__(self, host: Host, marker: Mapping[str, str]):
        self._host, self._marker = host, marker
        self._process: CliProcess | None = None
        self._started: CliProcess | None = None
        """The process whose start has succeeded; the exit of any other one is reported by its failed start."""
        self._control = ControlProtocol(self._write, host)
        self._reader = TurnReader(host, None)
        self._exited = asyncio.Event()
        self._in_turn = self._cancelled = False

    @property
    def pid(self) -> int | None:
        """The agent's pid while its process is running."""
        if self._process:
            return self._process.pid
        return None

    # -- start

    async def start(self, request: StartRequest) -> StartResult:
        """Start the agent and open or restore the conversation; raises StartFailed, which leaves no process."""
        if self.pid is not None:
            raise StartFailed(Code.ALREADY_RUNNING, "this agent runs already")
        try:
            async with asyncio.timeout(request.timeout):
                return await self._start(request)
        except TimeoutError as error:
            await self.stop(_FAILED_GRACE)
            message = f"the agent did not complete initialize within {request.timeout:g} s"
            raise StartFailed(Code.START_TIMEOUT, message) from error
        except BaseException:
            await self.stop(0)
            raise

    async def _start(self, request: StartRequest) -> StartResult:
        try:
            return await self._open(request)
        except StartFailed as failed:
            # The agent refuses to resume at a message that it does not know, and names it: resume at the end then.
            at = request.last_message_uuid
            if not at or at not in failed.message:
                raise
            await self.stop(0)
            text = "the agent does not know the last message of its conversation; resuming at the end"
            self._host.record(JournalKind.LOG, level="warning", text=text, data={"told": failed.message})
            return await self._open(replace(request, last_message_uuid=None))

    async def _open(self, request: StartRequest) -> StartResult:
        begin = time.monotonic()
        native = request.strategy == "native"
        token = request.resume_token if native else None
        parse = StreamJsonReader()
        control = self._control = ControlProtocol(self._write, self._host)
        reader = self._reader = TurnReader(self._host, token)

        async def on_message(message: Mapping[str, Any]) -> None:
            if not control.handle_if_control(message):
                await reader.handle(parse(message))

        try:
            process = await CliProcess.spawn(build_command(request), request, self._marker, self._host, on_message)
        except SpawnFailed as error:
            raise StartFailed(error.code, str(error), permanent=error.permanent) from error
        self._process, self._exited = process, asyncio.Event()
        self._exit_watcher = asyncio.create_task(self._watch_exit(process, control, self._exited), name="agent's end")
        spawned = time.monotonic()
        await self._initialize(request, process, control)
        self._started = process
        if self._exited.is_set():  # since its answer: _watch_exit reported nothing, because no start had succeeded
            self._host.agent_gone(process.exit_code)
        return StartResult(
            outcome="resumed" if native else "created",
            resume_token=reader.named or token,
            agent={"name": "claude-code", "version": ""},
            capabilities={
                "load_session": False,
                "resume_session": True,
                "history": True,
                "protocol": "claude stream-json",
                "prompt": ["image"],
            },
            timings={"spawn": _elapsed_ms(begin, spawned), "initialize": _elapsed_ms(spawned, time.monotonic())},
        )

    async def _initialize(self, request: StartRequest, process: CliProcess, control: ControlProtocol) -> None:
        """Send ``initialize``, which the agent answers once its conversation is open; raises StartFailed."""
        # An agent that cannot open the conversation may end with an error result, and never answer.
        hello = asyncio.create_task(control.ask({"subtype": "initialize", "hooks": None}))
        over = asyncio.create_task(self._reader.over.wait())
        try:
            await asyncio.wait([hello, over], return_when=asyncio.FIRST_COMPLETED)
            if self._reader.mismatch:
                raise StartFailed(Code.CONTEXT_MISMATCH, self._reader.mismatch, permanent=True)
            if self._reader.failed is not None:
                raise AgentGone
            await hello
            if request.mcp_servers:
                await control.ask({"subtype": "mcp_set_servers", "servers": mcp_servers_by_name(request.mcp_servers)})
        except ControlError as error:
            raise self._refused(str(error), request) from error
        except (AgentGone, PipeStuck) as error:
            await process.stop(_FAILED_GRACE)
            raise self._ended_early(process, request) from error
        finally:
            hello.cancel()
            over.cancel()
            await asyncio.gather(hello, over, return_exceptions=True)

    def _ended_early(self, process: CliProcess, request: StartRequest) -> StartFailed:
        error = ""
        if self._reader.failed:
            error = self._reader.failed.message
        details = "; ".join(filter(None, [error, process.output_tail()]))
        if error or (request.strategy == "native" and matches_gone_pattern(details, request.gone_patterns)):
            return self._refused(details, request)
        return StartFailed(
            Code.AGENT_EXITED, f"the agent ended {process.exit_description()} before completing session setup"
        )

    def _refused(self, message: str, request: StartRequest) -> StartFailed:
        if request.strategy == "native" and matches_gone_pattern(message, request.gone_patterns):
            return StartFailed(Code.TOKEN_REJECTED, f"the agent reported: {message}", token_valid=False)
        if failure_code(message) == Code.AUTH_REQUIRED:
            return StartFailed(Code.AUTH_REQUIRED, f"the agent requires a login: {message}", permanent=True)
        return StartFailed(Code.HANDSHAKE_FAILED, f"the agent answered with an error: {message}")

    # -- turns

    async def prompt(
        self, message_id: str, text: str, attachments: Sequence[Mapping[str, Any]], delivered: Any, kind: str = "user"
    ) -> str:
        """Run one turn to its end and return the stop reason ("cancelled" after a cancel); raises TurnFailed."""
        process, reader = self._process, self._reader
        if process is None or self._exited.is_set():
            raise TurnFailed(Code.NOT_RUNNING, "no agent is running")
        if reader.mismatch:
            raise TurnFailed(Code.CONTEXT_MISMATCH, reader.mismatch)
        images, others = split_images(attachments)
        content = [{"type": "text", "text": prompt_text(text, others)}, *map(_image_content, images)]
        message = {"type": "user", "message": {"role": "user", "content": content}, "parent_tool_use_id": None}
        self._in_turn, self._cancelled = True, False
        reader.begin()
        if reader.named is not None:
            # Forgets the last message until this turn is over: after a crash, a resume there would drop this turn.
            await self._host.keep_token(reader.named)
        try:
            await self._write(encode_message({**message, "session_id": reader.named or ""}) + b"\n")
            if inspect.isawaitable(acknowledged := delivered()):
                await acknowledged
            await wait_for_any(process.ended, reader.over)
        except PipeStuck as error:
            # Part of the prompt was written. It must never be completed, and the agent would read any further
            # message as its rest.
            await process.stop(0)
            raise TurnFailed("agent_stuck", str(error)) from error
        except OSError:
            await process.ended.wait()  # it has closed its stdin: the outcome reports how it ended
        finally:
            self._in_turn = False
        return await self._outcome(process, reader)

    async def _outcome(self, process: CliProcess, reader: TurnReader) -> str:
        if reader.mismatch:
            # The caller stops the agent when it gets this error; until then, keep it from working on.
            await self._interrupt()
            raise TurnFailed(Code.CONTEXT_MISMATCH, reader.mismatch)
        if not reader.over.is_set():
            await self._exited.wait()
            raise TurnFailed(Code.AGENT_EXITED, f"the agent ended {process.exit_description()} in the middle of a turn")
        if self._cancelled:
            return "cancelled"
        if reader.failed is not None:
            raise TurnFailed(failure_code(reader.failed.message), reader.failed.message)
        if reader.ended:
            return reader.ended.stop_reason
        return BLANK_STOP_REASON

    async def cancel(self) -> None:
        """Interrupt the active turn; an error that it then ends with counts as *cancelled*."""
        if self._in_turn:
            self._cancelled = True
            await self._interrupt()

    async def cancel_own_work(self) -> None:
        """Interrupt what the agent does without a prompt; see ``SupportsOwnWork``."""
        if self._process is not None and not self._in_turn and not self._exited.is_set():
            await self._interrupt()

    async def _interrupt(self) -> None:
        with contextlib.suppress(AgentGone, ControlError, PipeStuck, TimeoutError):
            async with asyncio.timeout(_HEARS_WITHIN):
                await self._control.ask({"subtype": "interrupt"})

    # -- the end

    async def stop(self, grace: float) -> int | None:
        """End the whole process tree (TERM, after ``grace`` seconds KILL); returns the exit code."""
        if self._process is None:
            return None
        exit_code = await self._process.stop(grace)
        await self._exited.wait()
        return exit_code

    async def _watch_exit(self, process: CliProcess, control: ControlProtocol, buried: asyncio.Event) -> None:
        await process.ended.wait()
        await control.close()
        buried.set()
        if self._started is process:
            self._host.agent_gone(process.exit_code)

    async def _write(self, data: bytes) -> None:
        if self._process is None:
            raise BrokenPipeError("the agent's input is closed")
        await self._process.write(data)


def _elapsed_ms(begin: float, end: float) -> float:
    return round((end - begin) * 1000, 1)


def _image_content(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return an image as the Messages API has it."""
    return {
        "type": "image",
        "source": {"type": "base64", "media_type": str(block.get("mimeType")), "data": block.get("data")},
    }

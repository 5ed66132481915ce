"""The driver of agents with a process per turn: between turns the agent has no process.

What a turn has started in the background runs on, as with other agents: until it ends, or the agent is stopped.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from executors_app.agentctl.drivers import Host, StartFailed, StartRequest, StartResult, TurnFailed
from executors_app.agentctl.drivers.cli_events import LineParser, TurnReader
from executors_app.agentctl.drivers.cli_process import CliProcess, run_command, wait_for_any
from executors_app.agentctl.drivers.failures import failure_code, matches_gone_pattern
from executors_app.agentctl.drivers.prompt_content import image_files, prompt_text, split_images
from executors_app.agentctl.process.agent_process import SpawnFailed
from executors_app.agentctl.process.async_io import PipeStuck
from executors_app.agentctl.process.background import orphan_commands
from executors_app.wire.command_redaction import secret_values
from executors_app.wire.protocol import Code, JournalKind

_CANCEL_GRACE: Final = 2.0
_EXIT_GRACE: Final = 10.0
"""Seconds that a process may keep running after it has reported the end of its turn."""
_VERSION: Final = re.compile(r"\d+\.\d+[\w.+-]*")


@dataclass(frozen=True, slots=True)
class Dialect:
    """What differs between command-line agents."""

    name: str
    """The agent's name in ``StartResult.agent``."""
    protocol: str
    """The protocol in ``StartResult.capabilities``."""
    turn: Callable[[StartRequest, str | None, Sequence[str]], list[str]]
    """Returns the command of one turn, which reads its prompt from stdin.

    Arguments: the request, the conversation to continue, and paths of images.
    """
    reader: Callable[[], LineParser]
    """Returns a parser for the lines of one turn."""
    takes_images: bool = False
    """Whether a turn takes images, as paths in its command."""


class PerTurnDriver:
    """See ``Driver``. Each prompt starts the agent, writes the text to its stdin, and reads its output to the end."""

    def __init__(self, host: Host, marker: Mapping[str, str], dialect: Dialect):
        self._host, self._marker, self._dialect = host, marker, dialect
        self._request: StartRequest | None = None
        """None before the start, and after the agent was stopped or has crashed."""
        self._conversation_id: str | None = None
        self._process: CliProcess | None = None
        self._left_running: list[CliProcess] = []
        """The ended processes of turns whose descendants may still run."""
        self._turn: TurnReader | None = None
        self._cancelled = False

    @property
    def pid(self) -> int | None:
        """The pid of the open turn's process."""
        if self._process:
            return self._process.pid
        return None

    def guard_pids(self) -> list[int]:
        """See ``KeepsProcesses``."""
        self._left_running = [process for process in self._left_running if process.guard_pid is not None]
        return [process.guard_pid for process in self._left_running if process.guard_pid is not None]

    # -- start

    async def start(self, request: StartRequest) -> StartResult:
        """Check that the agent can be run; raises StartFailed, which leaves no process.

        Whether it remembers the conversation shows only in its first turn.
        """
        if self._request is not None:
            raise StartFailed(Code.ALREADY_RUNNING, "this agent runs already")
        begin = time.monotonic()
        native = request.strategy == "native"
        if native and not request.resume_token:
            raise StartFailed(Code.VALIDATION_ERROR, "a native resume requires a token", permanent=True)
        try:
            async with asyncio.timeout(request.timeout):
                version = await self._version(request)
        except TimeoutError as error:
            message = f"the agent did not report its version within {request.timeout:g} s"
            raise StartFailed(Code.START_TIMEOUT, message) from error
        except SpawnFailed as error:
            raise StartFailed(error.code, str(error), permanent=error.permanent) from error
        request.report_left_out(self._host.record, None)  # it has servers of its own configuration only
        token = request.resume_token if native else None
        self._request, self._conversation_id = request, token
        return StartResult(
            outcome="resumed" if native else "created",
            resume_token=token,
            agent={"name": self._dialect.name, "version": version},
            capabilities={
                "load_session": False,
                "resume_session": True,
                "history": True,
                "protocol": self._dialect.protocol,
                "prompt": ["image"] if self._dialect.takes_images else [],
            },
            timings={"spawn": round((time.monotonic() - begin) * 1000, 1)},
        )

    async def _version(self, request: StartRequest) -> str:
        output = await run_command([*request.argv, "--version"], request, self._marker, self._host)
        if output.exit_code == 0:
            found = _VERSION.search(output.text)
            if found:
                return found[0]
            return output.text[:40]
        message = output.stderr or output.text[-1000:] or f"it ended with code {output.exit_code}"
        if request.resume_token and matches_gone_pattern(message, request.gone_patterns):
            raise StartFailed(Code.TOKEN_REJECTED, f"the agent reported: {message}", token_valid=False)
        raise StartFailed(Code.AGENT_EXITED, f"the agent says: {message}")

    # -- turns

    async def prompt(
        self, message_id: str, text: str, attachments: Sequence[Mapping[str, Any]], delivered: Any, kind: str = "user"
    ) -> str:
        """Run one turn to its end and return the stop reason ("cancelled" after a cancel); raises TurnFailed."""
        request = self._request
        if request is None:
            raise TurnFailed(Code.NOT_RUNNING, "no agent is running")
        images, others = list[Mapping[str, Any]](), list(attachments)
        if self._dialect.takes_images:
            images, others = split_images(attachments)
        data = prompt_text(text, others).encode("utf-8", "replace")
        self._cancelled, self._process = False, None
        turn = self._turn = TurnReader(self._host, self._conversation_id)
        try:
            with image_files(images) as paths:
                process = await self._spawn(request, turn, paths)
                await self._run_turn(process, turn, data, delivered)
            return await self._outcome(process, turn, request)
        finally:
            self._update_conversation(turn)
            self._turn = None

    async def _spawn(self, request: StartRequest, turn: TurnReader, images: Sequence[str]) -> CliProcess:
        reader = self._dialect.reader()

        async def on_message(message: Mapping[str, Any]) -> None:
            await turn.handle(reader(message))

        command = self._dialect.turn(request, self._conversation_id, images)
        try:
            process = await CliProcess.spawn(
                command, request, self._marker, self._host, on_message, keep_descendants=True
            )
        except SpawnFailed as error:
            raise TurnFailed(error.code, str(error)) from error
        self._process = process
        return process

    async def _run_turn(self, process: CliProcess, turn: TurnReader, text: bytes, delivered: Any) -> None:
        """Write the prompt and read until the process ends; it is gone when this returns or raises.

        After a regular end, what it has started may run on.
        """
        try:
            # A cancel or stop may have arrived while the process was starting: it must not get the prompt then.
            if not self._cancelled and self._request is not None:
                await self._send_prompt(process, text, delivered)
                await wait_for_any(process.ended, turn.over)
                if not turn.mismatch:
                    await self._wait_for_exit(process)
        finally:
            if self._may_leave_processes(process, turn):
                self._left_running.append(process)
            else:
                if not self._cancelled:
                    self._report_ended_processes(process)
                grace = _CANCEL_GRACE
                if turn.mismatch:
                    grace = 0
                await process.stop(grace)

    def _may_leave_processes(self, process: CliProcess, turn: TurnReader) -> bool:
        """Whether the agent reported the end of its turn and exited: what it then has left running was meant to run."""
        is_wanted = self._request is not None and not self._cancelled and not turn.mismatch
        return is_wanted and turn.over.is_set() and process.ended.is_set()

    def _report_ended_processes(self, process: CliProcess) -> None:
        """Name the background processes of a turn that are about to be ended: its agent could not end alone."""
        if process.guard_pid is None or process.pid is None or self._request is None:
            return  # after the agent's own end, the next prompt names what ended with it
        secrets = secret_values(self._request.env)
        if commands := orphan_commands(process.guard_pid, process.pid, secrets):
            why = "did not end by itself"
            if self._cancelled:
                why = "was cancelled"
            text = f"the turn {why}, and with it ended what it had left running: {'; '.join(commands)}"
            self._host.record(JournalKind.LOG, level="warning", text=text, data={"processes": commands})

    async def _send_prompt(self, process: CliProcess, text: bytes, delivered: Any) -> None:
        try:
            await process.write(text)
        except PipeStuck as error:
            # Part of the prompt was written: kill the agent before it takes the end of the pipe for the prompt's end.
            await process.stop(0)
            raise TurnFailed("agent_stuck", str(error)) from error
        except OSError:
            return  # it ended before it read the prompt: its stderr has the reason
        process.end_input()
        if inspect.isawaitable(acknowledged := delivered()):
            await acknowledged

    async def _wait_for_exit(self, process: CliProcess) -> None:
        try:
            async with asyncio.timeout(_EXIT_GRACE):
                await process.ended.wait()
        except TimeoutError:
            text = "the agent reported the end of its turn but did not exit; stopping it"
            self._host.record(JournalKind.LOG, level="warning", text=text, data={})

    async def _outcome(self, process: CliProcess, turn: TurnReader, request: StartRequest) -> str:
        if turn.mismatch:
            raise TurnFailed(Code.CONTEXT_MISMATCH, turn.mismatch)
        if self._cancelled:
            return "cancelled"
        if turn.ended is not None:
            return turn.ended.stop_reason
        if turn.failed is None and self._has_crashed(process, turn):
            self._request = None
            await self._stop_left_running(0)
            self._host.agent_gone(process.exit_code)
            raise TurnFailed(Code.AGENT_EXITED, f"the agent ended {process.exit_description()} in the middle of a turn")
        if turn.failed:
            message = turn.failed.message
        else:
            message = process.output_tail()
        # An agent that has named its conversation has it, whatever error it reports.
        if turn.named is None and self._conversation_id and matches_gone_pattern(message, request.gone_patterns):
            raise TurnFailed(Code.TOKEN_REJECTED, f"the agent reported: {message}")
        raise TurnFailed(
            failure_code(message), message or f"the agent ended {process.exit_description()} without an answer"
        )

    def _has_crashed(self, process: CliProcess, turn: TurnReader) -> bool:
        """Whether it ended in the middle of its work; one that refuses to begin has named no conversation yet."""
        killed = process.exit_code is None or process.exit_code < 0
        return killed or turn.named is not None or self._request is None

    def _update_conversation(self, turn: TurnReader) -> None:
        if turn.named is not None and not turn.mismatch:
            self._conversation_id = turn.named

    async def cancel(self) -> None:
        """End the process of the open turn; its conversation keeps what it has said so far."""
        if self._turn is None:
            return
        self._cancelled = True
        if self._process is not None:
            self._report_ended_processes(self._process)
            await self._process.stop(_CANCEL_GRACE)

    async def stop(self, grace: float) -> int | None:
        """End the process of the open turn, if any, and return its exit code. No further turn begins.

        What earlier turns have left running ends too.
        """
        self._request = None
        exit_code = None
        if self._process:
            exit_code = await self._process.stop(grace)
        await self._stop_left_running(grace)
        return exit_code

    async def _stop_left_running(self, grace: float) -> None:
        left, self._left_running = self._left_running, []
        await asyncio.gather(*(process.stop(grace) for process in left))

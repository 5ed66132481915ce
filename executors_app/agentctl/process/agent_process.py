"""One agent process under its guard: stdout as bytes, stdin as messages, stderr as rate-limited log lines."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from executors_app.agentctl.process.async_io import LineSplitter
from executors_app.agentctl.process.guard_client import GuardClient, SpawnFailed
from executors_app.machine import crash_points
from executors_app.machine.process import identity, spawning
from executors_app.machine.process.spawning import AGENT_MARKER
from executors_app.wire.log_rate_limit import RateLimitedLog
from executors_app.wire.protocol import BUILT_IN_AGENT, JournalKind

_DEMO_AGENT: Final = Path(__file__).resolve().parents[2] / "demo_agent"


def resolve_built_in_agent(argv: Sequence[str]) -> list[str]:
    """Replace the command of the built-in demo agent by its program on this machine.

    The control plane cannot know that path: it may run on another machine, in a container, or with another release.
    """
    if not argv or argv[0] != BUILT_IN_AGENT:
        return list(argv)
    return [sys.executable, "-I", str(_DEMO_AGENT), *argv[1:]]


__all__ = ["AgentProcess", "SpawnFailed"]

_STDERR_LINE_LIMIT: Final = 64 * 1024
_SILENT_AGENT: Final = 1.0
"""Seconds that an agent may keep running after its output has ended, before it is stopped."""
_STOP_GRACE: Final = 2.0
_LAST_DESCENDANT: Final = 0.2
"""Seconds after the agent's exit in which its descendants are expected to end, if they end with it."""


class AgentProcess:
    """An agent under its guard. Read it to its end, then close it."""

    def __init__(self, guard: GuardClient, record: Callable[..., Any], *, keep_descendants: bool = False):
        self._guard, self._record = guard, record
        self._keeps_descendants = keep_descendants
        self.stdin, self.stdout = guard.stdin, guard.stdout
        """The agent's input, and its output, which ends at the latest a second after the agent's exit."""
        self._stderr_log = RateLimitedLog(record, "stderr")
        self._oom_kills_before = identity.count_oom_kills()
        self.identity = identity.identify(guard.agent_pid)
        """The process's identity; None if it had ended already."""
        self._stderr = asyncio.create_task(self._drain_stderr(), name="agent's stderr")
        self._end_watcher = asyncio.create_task(self._limit_output_after_exit(), name="agent's end")

    @classmethod
    async def spawn(
        cls,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        marker: Mapping[str, str],
        record: Callable[..., Any],
        *,
        keep_descendants: bool = False,
    ) -> AgentProcess:
        """Start ``argv`` with the allowed part of our environment, ``env`` and ``marker``; raises SpawnFailed.

        ``record`` is ``Host.record``; it gets the agent's stderr as ``log`` lines at a limited rate. With
        ``keep_descendants`` processes that outlive an agent which exits by itself run on until ``stop``.
        """
        marks = {**marker, AGENT_MARKER: uuid.uuid4().hex}
        command, environment = resolve_built_in_agent(argv), spawning.build_environment(env, marks)
        guard = await GuardClient.spawn(command, environment, cwd, keep_descendants=keep_descendants)
        crash_points.reached("agentctl.agent_spawned")
        return cls(guard, record, keep_descendants=keep_descendants)

    @property
    def pid(self) -> int:
        """The agent's own pid, not its guard's."""
        return self._guard.agent_pid

    @property
    def guard_pid(self) -> int:
        """The pid of its guard, whose descendants are all that the agent has started."""
        return self._guard.pid

    @property
    def has_exited(self) -> bool:
        """Whether the agent itself has ended."""
        return self._guard.agent_ended.is_set()

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative for a signal; None while the agent lives, or if the guard could not report it."""
        return self._guard.exit_code

    def exit_description(self) -> str:
        """Describe the exit for a message: ``with code N``, ``with signal N``, or ``out of memory``."""
        code = self.exit_code
        if code == -signal.SIGKILL and identity.count_oom_kills() > self._oom_kills_before:
            return "out of memory"
        if code is not None and code < 0:
            return f"with signal {-code}"
        return f"with code {code}"

    @property
    def is_running(self) -> bool:
        """Whether the agent or any of its descendants still lives."""
        return not self._guard.tree_ended.is_set()

    async def wait(self) -> int | None:
        """Wait until nothing is left of the agent, and return its exit code."""
        await self._guard.tree_ended.wait()
        return self.exit_code

    async def end_input(self, patience: float) -> None:
        """Close the agent's input, and wait up to ``patience`` seconds for the agent to end by itself.

        What it has started is recorded first, because it may end that itself.
        """
        await self._guard.record_processes()
        self.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self._guard.agent_ended.wait()

    async def stop(self, grace: float) -> int | None:
        """End the whole tree (TERM, after ``grace`` seconds KILL) and return the exit code."""
        return await self._guard.stop(grace)

    async def close(self) -> None:
        """Close the pipes, after the end."""
        await self._end_watcher
        await self._stderr
        self._guard.close_pipes()

    async def finish(self) -> int | None:
        """After the end of its output: end it if it still runs, close the pipes, and return the exit code.

        Descendants that are kept run on; their output is discarded.
        """
        if self._keeps_descendants:
            ended = self._guard.agent_ended
        else:
            ended = self._guard.tree_ended
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SILENT_AGENT):
                await ended.wait()
        if self._keeps_descendants and self.has_exited:
            with contextlib.suppress(TimeoutError):  # most agents leave nothing, and the next turn wants the guard
                async with asyncio.timeout(_LAST_DESCENDANT):
                    await self.wait()
            self._closing = asyncio.create_task(self._close_after_descendants(), name="agent's descendants")
            await self._end_watcher
            await self._stderr
            return self.exit_code
        return await self._end()

    async def _close_after_descendants(self) -> None:
        await self._end_watcher
        await self._stderr
        self._guard.stdin.close()
        self._guard.stdout.discard()
        self._guard.stderr.discard()
        await self.wait()
        self._guard.close_pipes()
        self._report_survivors()

    async def _end(self) -> int | None:
        exit_code = await self.stop(_STOP_GRACE)
        await self.close()
        self._report_survivors()
        return exit_code

    def _report_survivors(self) -> None:
        if survivors := self._guard.survivors:
            text = "some of the agent's processes could not be ended"
            self._record(JournalKind.LOG, level="error", text=text, data={"pids": survivors})

    def output_tail(self) -> str:
        """Return the last lines of stderr."""
        return self._stderr_log.tail()

    async def _drain_stderr(self) -> None:
        """Read stderr until its end: an agent would block once that pipe is full."""
        splitter = LineSplitter(_STDERR_LINE_LIMIT)
        while data := await self._guard.stderr.read():
            for line in splitter.feed(data):
                self._stderr_log.put(line)
        self._stderr_log.put(splitter.torn())
        self._stderr_log.flush()

    async def _limit_output_after_exit(self) -> None:
        await self._guard.agent_ended.wait()
        self.stdout.end()
        self._guard.stderr.end()

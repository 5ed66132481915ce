"""One agent process under its guard: output as bytes, input as messages, stderr as rate-limited log lines.

And the command of the built-in demo agent.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from executors_app import crash_points
from executors_app.agentctl.journal.filters import RateLimitedLog
from executors_app.agentctl.process import child_environment, control_group, identity
from executors_app.agentctl.process.async_io import LineSplitter
from executors_app.agentctl.process.child_environment import AGENT_MARKER
from executors_app.agentctl.process.guard_client import GuardClient, SpawnFailed
from executors_app.agentctl.protocol import BUILT_IN_AGENT

_DEMO_AGENT_SCRIPT: Final = Path(__file__).resolve().parents[2] / "demo_agent.py"


def resolve_built_in_agent(argv: Sequence[str]) -> list[str]:
    """``argv`` as it can be run here: the command of the built-in agent is replaced by its program beside agentctl.

    The control plane cannot know that path: it may be on another machine, in a container, or of another release.
    """
    if not argv or argv[0] != BUILT_IN_AGENT:
        return list(argv)
    return [sys.executable, "-I", str(_DEMO_AGENT_SCRIPT), *argv[1:]]


__all__ = ["AgentProcess", "SpawnFailed"]

WRITE_TIMEOUT: Final = 30.0
"""Seconds an agent may leave its input unread before it counts as stuck."""
_STDERR_LINE_LIMIT: Final = 64 * 1024


class AgentProcess:
    """An agent under its guard. ``read`` it to its end, then ``close`` it."""

    def __init__(self, guard: GuardClient, record: Callable[..., Any]):
        self._guard = guard
        self._valve = RateLimitedLog(record, "stderr")
        self._kills = control_group.count_oom_kills()
        self.identity = identity.identify(guard.agent_pid)
        """None if it has ended already."""
        self._stderr = asyncio.create_task(self._drain_stderr(), name="agent's stderr")
        self._hurrying = asyncio.create_task(self._hurry_at_the_end(), name="agent's end")

    @classmethod
    async def spawn(
        cls,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        marker: Mapping[str, str],
        record: Callable[..., Any],
    ) -> AgentProcess:
        """Start ``argv`` with the allowed part of our environment, ``env`` and ``marker``; SpawnFailed.

        ``record`` is ``Host.record``; it gets the agent's stderr as ``log`` lines, a few a second.
        """
        marks = {**marker, AGENT_MARKER: uuid.uuid4().hex}
        guard = await GuardClient.spawn(
            resolve_built_in_agent(argv), child_environment.build_environment(env, marks), cwd
        )
        crash_points.reached("agentctl.agent_spawned")
        return cls(guard, record)

    @property
    def pid(self) -> int:
        """The agent's own pid, not its guard's."""
        return self._guard.agent_pid

    @property
    def exit_code(self) -> int | None:
        """Negative for a signal; None while it lives, or where the guard could not tell."""
        return self._guard.exit_code

    def ending(self) -> str:
        """How it ended, for a sentence: with which code, or for want of memory."""
        starved = self.exit_code == -signal.SIGKILL and control_group.count_oom_kills() > self._kills
        return "out of memory" if starved else f"with code {self.exit_code}"

    @property
    def running(self) -> bool:
        """Whether the agent or anything of its tree still lives."""
        return not self._guard.tree_ended.is_set()

    @property
    def left(self) -> list[int]:
        """Pids of its tree that could not be ended."""
        return self._guard.left

    async def read(self) -> bytes:
        """The next bytes of stdout; empty at its end, at the latest a second after the agent's."""
        return await self._guard.stdout.read()

    async def write(self, data: bytes, timeout: float = WRITE_TIMEOUT) -> None:
        """Write a message to stdin; PipeStuck, BrokenPipeError."""
        await self._guard.stdin.write(data, timeout)

    def end_input(self) -> None:
        """Let it read the end of its stdin."""
        self._guard.stdin.close()

    async def wait(self) -> int | None:
        """Until nothing is left of the agent; its exit code."""
        await self._guard.tree_ended.wait()
        return self.exit_code

    async def stop(self, grace: float) -> int | None:
        """End the whole tree: TERM, after ``grace`` seconds KILL; the exit code."""
        return await self._guard.stop(grace)

    async def close(self) -> None:
        """Give the pipes back, after the end."""
        await self._hurrying
        await self._stderr
        self._guard.close_pipes()

    def output_tail(self) -> str:
        """The last lines of stderr."""
        return self._valve.tail()

    async def _drain_stderr(self) -> None:
        """An agent whose stderr nobody reads would stand still."""
        splitter = LineSplitter(_STDERR_LINE_LIMIT)
        while data := await self._guard.stderr.read():
            for line in splitter.feed(data):
                self._valve.put(line)
            await asyncio.sleep(0)
        self._valve.put(splitter.torn())
        self._valve.flush()

    async def _hurry_at_the_end(self) -> None:
        await self._guard.agent_ended.wait()
        self._guard.stdout.end()
        self._guard.stderr.end()

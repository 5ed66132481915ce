"""One agent process: its output as bytes, its input as messages, its stderr as a trickle of log lines."""

from __future__ import annotations

import asyncio
import signal
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from executors_app import crash_points
from executors_app.agentctl import built_in_agent, child_environment, identity, out_of_memory
from executors_app.agentctl.child_environment import AGENT_MARKER
from executors_app.agentctl.guard import Guard, SpawnFailed
from executors_app.agentctl.log_valve import LogValve
from executors_app.agentctl.pipes import LineSplitter

__all__ = ["AgentProcess", "SpawnFailed"]

WRITE_TIMEOUT: Final = 30.0
"""Seconds an agent may leave its input unread before it counts as stuck."""
_STDERR_LINE: Final = 64 * 1024


class AgentProcess:
    """An agent under its guard. ``read`` it to its end, then ``close`` it."""

    def __init__(self, guard: Guard, record: Callable[..., Any]):
        self._guard = guard
        self._valve = LogValve(record, "stderr")
        self._kills = out_of_memory.kills()
        self.identity = identity.of(guard.agent_pid)
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
        guard = await Guard.spawn(built_in_agent.resolve(argv), child_environment.build(env, marks), cwd)
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
        starved = self.exit_code == -signal.SIGKILL and out_of_memory.kills() > self._kills
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

    def last_words(self) -> str:
        """The last lines of stderr."""
        return self._valve.tail()

    async def _drain_stderr(self) -> None:
        """An agent whose stderr nobody reads would stand still."""
        splitter = LineSplitter(_STDERR_LINE)
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

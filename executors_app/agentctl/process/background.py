"""The processes that an agent has started in its turns and that still run."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from executors_app.agentctl.process.guard_process import children_of, command_line_of
from executors_app.wire.protocol import JournalKind

MAX_LISTED: Final = 20
_SETTLE_SECONDS: Final = 1.0
"""After a turn; what ends within it was no background process."""
_CHECK_INTERVAL: Final = 10.0
"""Seconds between two checks, as long as such a process runs."""


@dataclass(frozen=True, slots=True)
class BackgroundProcess:
    """A process that has outlived the turn that began it."""

    command: str
    """Its command line, on one line and cut; its program and its arguments are the agent's words."""
    since: str
    """When it was started; ISO 8601, to the second."""


class BackgroundProcesses:
    """Knows which processes belong to the agent itself: those that ran when it had just started.

    They are its own helpers and its MCP servers. Whatever runs besides them between turns was begun by a turn. All are
    descendants of the agent or, once their parents have ended, of its guard.
    """

    def __init__(self) -> None:
        self._own: set[tuple[int, str]] = set()
        # Read once: with a new reading each time, the same process would seem to have started at another moment.
        self._booted_at = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)

    def note_started(self, agent_pid: int | None) -> None:
        """Take the processes of now as the agent's own."""
        self._own = set(_family_of(agent_pid))

    def running(self, agent_pid: int | None, guard_pids: Iterable[int] = ()) -> list[BackgroundProcess]:
        """Return the other processes, the oldest first; empty if there is no agent.

        ``guard_pids`` are the guards of agent processes that have ended and left others running.
        """
        found = []
        families = [_family_of(agent_pid), *(_descendants_of(guard, agent_pid) for guard in guard_pids)]
        for pid, ticks in itertools.chain(*families):
            if (pid, ticks) in self._own:
                continue
            if command := command_line_of(pid):
                found.append(BackgroundProcess(command, self._started_at(ticks)))
        return sorted(found, key=lambda process: (process.since, process.command))

    def _started_at(self, ticks: str) -> str:
        """Return a start time of ``/proc/PID/stat``, in clock ticks since the boot, as a time of the wall clock."""
        at = self._booted_at + int(ticks) / os.sysconf("SC_CLK_TCK")
        return datetime.fromtimestamp(int(at), UTC).isoformat()


class BackgroundReports:
    """Journals which background processes run, after each turn or work outside one, and whenever that changes.

    Args:
        read: Returns the processes; None while a turn is open or no agent runs.
        record: Appends a journal line.
    """

    def __init__(self, read: Callable[[], Sequence[BackgroundProcess] | None], record: Callable[..., Any]):
        self._read, self._record = read, record
        self._reported: Sequence[BackgroundProcess] = ()
        self._watch: asyncio.Task[None] | None = None

    def after_turn(self) -> None:
        """Watch the processes that the turn has left."""
        self.close()
        self._watch = asyncio.create_task(self._report_until_none(), name="background processes")

    def note_output(self) -> None:
        """Watch also what an agent starts that works outside a turn."""
        if self._watch is None or self._watch.done():
            self.after_turn()

    async def _report_until_none(self) -> None:
        wait = _SETTLE_SECONDS
        while True:
            await asyncio.sleep(wait)
            if not self._report_changes():
                return
            wait = _CHECK_INTERVAL

    def _report_changes(self) -> bool:
        """Journal the processes if they have changed; return whether there are any that may end."""
        running = self._read()
        if running is None:
            return bool(self._reported)
        if list(running) != list(self._reported):
            self._reported = list(running)
            listed = [{"command": each.command, "since": each.since} for each in running[:MAX_LISTED]]
            self._record(JournalKind.AGENT_PROCESSES, processes=listed, count=len(running))
        return bool(running)

    def close(self) -> None:
        """Stop watching."""
        if self._watch is not None:
            self._watch.cancel()


def _family_of(agent_pid: int | None) -> list[tuple[int, str]]:
    """Return pid and start time of the descendants of the agent's guard, without the agent."""
    guard = _parent_of(agent_pid) if agent_pid else 0
    if guard > 1:
        return _descendants_of(guard, agent_pid)
    return []


def orphan_commands(guard_pid: int, agent_pid: int | None) -> list[str]:
    """Return the command lines of processes that the agent has started and that are no descendants of it any more."""
    found = _descendants_of(guard_pid, agent_pid, with_agents_own=False)
    return [command for pid, _ in found[:MAX_LISTED] if (command := command_line_of(pid))]


def _descendants_of(guard: int, agent_pid: int | None, *, with_agents_own: bool = True) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    waiting, seen = children_of(guard), {guard}
    if agent_pid is not None and not with_agents_own:
        seen.add(agent_pid)
    while waiting:
        pid = waiting.pop()
        if pid in seen:
            continue
        seen.add(pid)
        waiting += children_of(pid)
        if pid != agent_pid and (fields := _stat_of(pid)):
            found.append((pid, fields[19]))
    return found


def _parent_of(pid: int) -> int:
    fields = _stat_of(pid)
    if fields:
        return int(fields[1])
    return 0


def _stat_of(pid: int) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` from the state on; empty if the process is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
    if len(fields) > 19 and fields[0] != "Z":
        return fields
    return []

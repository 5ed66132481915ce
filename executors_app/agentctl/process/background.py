"""The processes that an agent has started in its turns and that still run."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import dropwhile
from time import monotonic
from typing import Any, Final

from executors_app.agentctl.process.process_roles import AgentFacts, Key, ProcessFacts, Role, roles_of
from executors_app.agentctl.process.process_tree import Descendants, descendants_of, parent_of
from executors_app.wire.command_redaction import redact_command, secret_values
from executors_app.wire.protocol import JournalKind

MAX_LISTED: Final = 20
_SETTLE_SECONDS: Final = 1.0
"""After a turn; what ends within it was no background process."""
_CHECK_INTERVAL: Final = 10.0
"""Seconds between two checks, as long as such a process runs."""
_REPORT_INTERVAL: Final = 60.0
"""Seconds between two reports without a change, which say how much CPU time the processes have taken."""
_CLOCK_TOLERANCE: Final = 2.0
"""Seconds by which the clock may drift before the starts of processes follow it."""
_NPX_OPTIONS: Final = frozenset({"-y", "--yes", "-q", "--quiet"})
_MAX_COMMANDS: Final = 200
"""Command lines of the agent's own processes that are remembered."""


@dataclass(frozen=True, slots=True)
class BackgroundProcess:
    """A process that has outlived the turn that began it."""

    command: str
    """Its command line, on one line, as it is; its program and its arguments are the agent's words."""
    since: str
    """When it was started; ISO 8601, to the second."""
    cpu_seconds: float = 0.0
    """CPU time that it and the children that it has waited for have taken."""
    pid: int = 0


@dataclass(frozen=True, slots=True)
class BackgroundWork:
    """All such processes of an agent."""

    processes: Sequence[BackgroundProcess] = ()
    """The oldest first."""
    is_complete: bool = True
    """False: the agent has more processes than are read, so there may be others."""

    def __bool__(self) -> bool:
        return bool(self.processes) or not self.is_complete

    def listed(self, secrets: Iterable[str] = ()) -> list[BackgroundProcess]:
        """Return those that are listed, with command lines that can be shown."""
        return [replace(each, command=redact_command(each.command, secrets)) for each in self.processes[:MAX_LISTED]]

    @property
    def commands(self) -> Counter[str]:
        """Their command lines, with their number."""
        return Counter(process.command for process in self.processes)


class BackgroundProcesses:
    """Tells the processes that turns have left running from those of the agent itself (``process_roles``).

    All are descendants of the agent or, once their parents have ended, of its guard.
    """

    def __init__(self) -> None:
        self._agent = AgentFacts(None, None)
        self.secrets: frozenset[str] = frozenset()
        """Values that are not shown in command lines."""
        self._left: frozenset[Key] = frozenset()
        self._booted_at = _boot_time()

    def note_started(
        self, mcp_servers: Iterable[Mapping[str, Any]] = (), environment: Mapping[str, str] | None = None
    ) -> None:
        """Begin with a new agent, which has not worked yet."""
        self.secrets = secret_values(environment or {})
        commands = (command for server in mcp_servers for command in _commands_of_server(server))
        self._agent = AgentFacts(None, None, frozenset(commands))
        self._left = frozenset()

    @property
    def has_worked(self) -> bool:
        """Whether the agent has got a prompt, or has begun to work without one."""
        return self._agent.first_work is not None

    def note_work_began(self, agent_pid: int | None, guard_pids: Iterable[int] = ()) -> None:
        """Take the processes of now as the agent's own if this is its first work, and others as left by earlier work.

        Call it before the agent gets a prompt, and when it begins to work without one.
        """
        found = _read(agent_pid, guard_pids).processes
        if self._agent.first_work is None:
            now = int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
            own = frozenset(process.command for process in found[:_MAX_COMMANDS])
            self._agent = replace(self._agent, first_work=now, own_commands=own)
        roles = roles_of(found, replace(self._agent, pid=agent_pid))
        self._left = frozenset(key for key, role in roles.items() if role is Role.BACKGROUND)

    def running(
        self, agent_pid: int | None, guard_pids: Iterable[int] = (), *, turn_is_open: bool = False
    ) -> BackgroundWork:
        """Return the processes that turns have left running; none if there is no agent.

        ``guard_pids`` are the guards of agent processes that have ended and left others running.
        """
        found = _read(agent_pid, guard_pids)
        agent = replace(self._agent, pid=agent_pid, turn_is_open=turn_is_open, left_before=self._left)
        roles = roles_of(found.processes, agent)
        left = [process for process in found.processes if roles[process.key] is Role.BACKGROUND]
        left.sort(key=lambda process: (process.started, process.pid))
        return BackgroundWork(tuple(map(self._describe, left)), found.is_complete)

    def _describe(self, process: ProcessFacts) -> BackgroundProcess:
        # With a new reading each time, the same process would seem to have started at another moment.
        if abs(_boot_time() - self._booted_at) > _CLOCK_TOLERANCE:
            self._booted_at = _boot_time()  # the clock has been set
        at = self._booted_at + process.started / os.sysconf("SC_CLK_TCK")
        since = datetime.fromtimestamp(int(at), UTC).isoformat()
        return BackgroundProcess(process.command, since, round(process.cpu_seconds, 1), process.pid)


class BackgroundReports:
    """Journals which background processes run, after each turn or work outside one, as long as there are any.

    A change is journaled when it is noticed, but the longer they keep changing, the less often, down to once in
    ``_REPORT_INTERVAL``.

    Args:
        read: Returns the processes; None without an agent.
        record: Appends a journal line.
        secrets: Returns the values that must not be in it.
    """

    def __init__(
        self,
        read: Callable[[], BackgroundWork | None],
        record: Callable[..., Any],
        secrets: Callable[[], Iterable[str]] = tuple,
    ):
        self._read, self._record, self._secrets = read, record, secrets
        self._reported = BackgroundWork()
        self._reported_at = 0.0
        self._pause = 0.0
        self._watch: asyncio.Task[None] | None = None

    def after_turn(self) -> None:
        """Watch the processes that the turn has left."""
        self.close()
        self._pause = 0.0
        self._watch = asyncio.create_task(self._report_until_none(), name="background processes")

    def note_output(self) -> None:
        """Watch also what an agent starts that works outside a turn."""
        if self._watch is None or self._watch.done():
            self.after_turn()

    async def _report_until_none(self) -> None:
        wait = _SETTLE_SECONDS
        while True:
            await asyncio.sleep(wait)
            if not self._report_if_due():
                return
            wait = _CHECK_INTERVAL

    def _report_if_due(self) -> bool:
        """Journal the processes if it is time; return whether there are any that may end."""
        running = self._read()
        if running is None:
            return False
        passed = monotonic() - self._reported_at
        has_changed = running.commands != self._reported.commands or running.is_complete != self._reported.is_complete
        if bool(running) != bool(self._reported):
            self._report(running)
        elif has_changed and passed >= self._pause:
            self._pause = min(max(2 * self._pause, _CHECK_INTERVAL), _REPORT_INTERVAL)
            self._report(running)
        elif running and passed >= _REPORT_INTERVAL:
            self._report(running)
        return bool(running)

    def _report(self, running: BackgroundWork) -> None:
        self._reported, self._reported_at = running, monotonic()
        listed = [
            {"command": each.command, "since": each.since, "cpu_seconds": each.cpu_seconds}
            for each in running.listed(self._secrets())
        ]
        cpu_seconds = round(sum(each.cpu_seconds for each in running.processes), 1)
        self._record(
            JournalKind.AGENT_PROCESSES,
            processes=listed,
            count=len(running.processes),
            cpu_seconds=cpu_seconds,
            complete=running.is_complete,
        )

    def close(self) -> None:
        """Stop watching."""
        if self._watch is not None:
            self._watch.cancel()


def orphan_commands(guard_pid: int, agent_pid: int | None, secrets: Iterable[str] = ()) -> list[str]:
    """Return the command lines of processes that the agent has started and that are no descendants of it any more."""
    found = descendants_of([guard_pid], agent_pid, below_it=False).processes
    return [redact_command(process.command, secrets) for process in found[:MAX_LISTED]]


def _boot_time() -> float:
    """Return when the machine was booted, by its present clock."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def _read(agent_pid: int | None, guard_pids: Iterable[int]) -> Descendants:
    guards = set(guard_pids)
    try:
        if agent_pid and (guard := parent_of(agent_pid)) > 1:
            guards.add(guard)
    except OSError:  # no descriptors are left to see it with
        return Descendants([], is_complete=False)
    return descendants_of(guards, agent_pid)


def _commands_of_server(server: Mapping[str, Any]) -> Iterator[str]:
    """Yield the command lines that a configured MCP server may have; none for one that is no program."""
    command, arguments = server.get("command"), list(map(str, server.get("args") or ()))
    if not isinstance(command, str) or not command:
        return
    yield " ".join([command, *arguments])
    if command.rpartition("/")[2] == "npx":  # it calls itself like the command that it stands for
        yield " ".join(["npm exec", *dropwhile(_NPX_OPTIONS.__contains__, arguments)])

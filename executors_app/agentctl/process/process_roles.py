"""Which processes of an agent are its own, and which its turns have left running (pure).

The first rule that applies decides:

1. What started before the first work of the agent is the agent's own: its wrapper, its helpers and its MCP servers. Its
   first work is its first prompt, or output before that.
2. A configured MCP server and what it has started are the agent's own, whenever the agent starts them.
3. A process with the command line of one of the agent's own, started by the agent or one of its own, is that helper
   again, as after a crash. What it starts is judged by itself.
4. While a turn is open, a process is left of an earlier turn if it was so before the turn began. All others belong to
   the open turn.
5. Whatever else runs was begun by a turn and has outlived it.

An agent chooses the command lines of its processes. One that calls its work like a helper hides it only from the list
and from the reasons to stay awake: its guard still names what it kills.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """What a process of the agent is."""

    OWN = "own"
    """The agent's own."""
    TURN = "turn"
    """Part of the open turn."""
    BACKGROUND = "background"
    """Left running by a turn that has ended."""


Key = tuple[int, int]
"""Pid and start time of a process, which together name it once and for all."""


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """A process as the kernel describes it."""

    pid: int
    parent: int
    started: int
    """Clock ticks since the boot."""
    command: str
    cpu_seconds: float = 0.0

    @property
    def key(self) -> Key:
        """What identifies the process."""
        return (self.pid, self.started)


@dataclass(frozen=True, slots=True)
class AgentFacts:
    """What agentctl knows of the agent's own processes and of its turns."""

    pid: int | None
    """Its process; None for an agent that has none between turns."""
    first_work: int | None
    """When it began its first work, in clock ticks since the boot; None: not yet."""
    mcp_servers: Collection[str] = ()
    """The command lines of its configured MCP servers."""
    own_commands: Collection[str] = ()
    """The command lines of its own processes."""
    turn_is_open: bool = False
    left_before: Collection[Key] = ()
    """The processes that were left running when no turn was open."""


def roles_of(processes: Sequence[ProcessFacts], agent: AgentFacts) -> dict[Key, Role]:
    """Return what each process is; ``processes`` are the descendants of the agent's guards, without the agent."""
    by_pid = {process.pid: process for process in processes}
    servers = {process.pid for process in processes if _is_server(process.command, agent.mcp_servers)}

    def is_of_server(process: ProcessFacts) -> bool:
        return any(pid in servers for pid in _lineage(process, by_pid))

    return {process.key: _role_of(process, agent, by_pid, is_of_server) for process in processes}


def _role_of(
    process: ProcessFacts,
    agent: AgentFacts,
    by_pid: Mapping[int, ProcessFacts],
    is_of_server: Callable[[ProcessFacts], bool],
) -> Role:
    if _is_early(process, agent) or is_of_server(process):
        return Role.OWN
    parent = by_pid.get(process.parent)
    is_of_agent = process.parent == agent.pid or (parent is not None and _is_early(parent, agent))
    if is_of_agent and process.command in agent.own_commands:
        return Role.OWN
    if agent.turn_is_open and process.key not in agent.left_before:
        return Role.TURN
    return Role.BACKGROUND


def _is_early(process: ProcessFacts, agent: AgentFacts) -> bool:
    return agent.first_work is None or process.started < agent.first_work


def _is_server(command: str, servers: Iterable[str]) -> bool:
    # It may run below an interpreter, and its program may be named by its full path.
    return any(command == server or command.endswith((f" {server}", f"/{server}")) for server in servers)


def _lineage(process: ProcessFacts, by_pid: Mapping[int, ProcessFacts]) -> Iterable[int]:
    """Yield the pids of a process and of its ancestors as far as they are known; pids may form no circle, but might."""
    seen: set[int] = set()
    pid = process.pid
    while pid not in seen and pid in by_pid:
        seen.add(pid)
        yield pid
        pid = by_pid[pid].parent

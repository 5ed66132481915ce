"""The processes of executions on this machine, found and ended by proof: marker or control group, start time, boot.

agentctl itself carries the marker too; it is told from what it started by its command line. Anybody can give a
process of their own such a command line, so it must be of our user as well.
"""

from __future__ import annotations

import os
import signal
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from executors_app.agentctl.process import control_group, identity
from executors_app.agentctl.process.identity import ProcessIdentity
from executors_app.agentctl.protocol import EXECUTION_MARKER

_MARK: Final = f"{EXECUTION_MARKER}=".encode()
AGENTCTL_MODULE: Final = "executors_app.agentctl"


@dataclass(slots=True)
class ExecutionProcesses:
    """What lives of one execution."""

    agentctl: list[ProcessIdentity] = field(default_factory=list)
    others: list[ProcessIdentity] = field(default_factory=list)
    """The agent, its guard, shells: leftovers once agentctl is dead."""


def find_all_processes() -> dict[str, ExecutionProcesses]:
    """All live processes of executions by execution id, in one pass over the machine; missing ids have none."""
    found: defaultdict[str, ExecutionProcesses] = defaultdict(ExecutionProcesses)
    for pid in identity.list_pids():
        execution_id = _marked_execution(pid)
        who = identity.identify(pid) if execution_id else None
        if who is None or not identity.is_alive(who):
            continue
        processes = found[execution_id]
        (processes.agentctl if is_agentctl(pid, execution_id) else processes.others).append(who)
    return found


def _marked_execution(pid: int) -> str:
    for entry in identity.read_environment(pid):
        if entry.startswith(_MARK):
            return entry.removeprefix(_MARK).decode("utf-8", "replace")
    return control_group.execution_of_process(pid)


def find_processes(execution_id: str) -> ExecutionProcesses:
    """What lives of one execution."""
    return find_all_processes().get(execution_id) or ExecutionProcesses()


def is_agentctl(pid: int, execution_id: str) -> bool:
    """Whether a process of our user was started as the agentctl of this execution."""
    return identity.owner_of(pid) == os.geteuid() and has_agentctl_command_line(pid, execution_id)


def has_agentctl_command_line(pid: int, execution_id: str) -> bool:
    """Whether its command line says so, which anybody's may."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return False
    named = [after for word, after in pairwise(words) if word == "--execution-id"]
    return AGENTCTL_MODULE in words and named == [execution_id]


def recorded_process(state: Mapping[str, Any]) -> ProcessIdentity | None:
    """The identity of agentctl as the row's ``state`` keeps it, if it does."""
    try:
        return ProcessIdentity.from_json(state["process"])
    except (KeyError, TypeError, ValueError):
        return None


def terminate_process(who: ProcessIdentity, grace: float) -> bool:
    """TERM, and KILL after ``grace`` seconds; True when the process is gone. Blocks."""
    if identity.send_signal(who, signal.SIGTERM) and not _wait_until_gone(who, grace):
        return not identity.kill_all([who], 5)
    return True


def kill_leftovers(execution_id: str) -> int:
    """KILL what is left of an execution whose agentctl is gone; returns how many ended. Blocks.

    Looks again until two looks find nothing, as the killed may have forked meanwhile; touches
    nothing as soon as an agentctl lives.
    """
    ended = empty = 0
    for _ in range(20):
        processes = find_processes(execution_id)
        if processes.agentctl or empty == 2:
            break
        empty = 0 if processes.others else empty + 1
        for other in processes.others:
            if control_group.execution_of_process(other.pid) == execution_id and control_group.kill_group(other.pid):
                break
        ended += len(processes.others) - len(identity.kill_all(processes.others, 5))
    control_group.remove_group(execution_id)
    return ended


def _wait_until_gone(who: ProcessIdentity, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while identity.is_alive(who):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True

"""Find and end the processes of executions on this machine.

A process belongs to an execution if its environment has the marker or it is in the execution's control group; its
start time and the kernel's boot id prove that it is still the same process. agentctl carries the marker too and is
recognised by its command line. Anyone can start a process with such a command line, so it must also run as our user.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from executors_app.machine.process import identity
from executors_app.machine.process.identity import ProcessIdentity
from executors_app.wire.protocol import EXECUTION_MARKER

_MARK: Final = f"{EXECUTION_MARKER}=".encode()
AGENTCTL_MODULE: Final = "executors_app.agentctl"


@dataclass(slots=True)
class ExecutionProcesses:
    """The live processes of one execution."""

    agentctl: list[ProcessIdentity] = field(default_factory=list)
    others: list[ProcessIdentity] = field(default_factory=list)
    """The agent, its guard and shells; leftovers once agentctl is dead."""


class _SharedScans:
    """Scans of the machine's processes: those who wait for one at the same time share the next."""

    def __init__(self) -> None:
        self._scanning = threading.Lock()
        self._begun = self._finished = 0
        self._pids: Mapping[str, Sequence[int]] = {}

    def next_result(self) -> Mapping[str, Sequence[int]]:
        """Return the pids of each execution, as found by a scan that begins after this call. Blocks."""
        begun = self._begun
        with self._scanning:
            if self._finished <= begun:
                self._begun += 1
                self._pids = _scan()
                self._finished = self._begun
            return self._pids


_scans: Final = _SharedScans()


def _scan() -> Mapping[str, Sequence[int]]:
    found: defaultdict[str, list[int]] = defaultdict(list)
    for pid in identity.list_pids():
        for execution_id in _executions_of(pid):
            found[execution_id].append(pid)
    return found


def _executions_of(pid: int) -> set[str]:
    """Return the executions that a process belongs to by a marker or by its group: an agent may set other markers."""
    marks = {entry for entry in identity.read_environment(pid) if entry.startswith(_MARK)}
    named = {mark.removeprefix(_MARK).decode("utf-8", "replace") for mark in marks}
    return {*named, identity.execution_of_process(pid)} - {""}


def find_all_processes() -> dict[str, ExecutionProcesses]:
    """Return all live processes by execution id. Blocks."""
    return {execution_id: _identify(pids, execution_id) for execution_id, pids in _scans.next_result().items()}


def find_processes(execution_id: str) -> ExecutionProcesses:
    """Return the live processes of one execution. Blocks."""
    return _identify(_scans.next_result().get(execution_id, ()), execution_id)


def _identify(pids: Iterable[int], execution_id: str) -> ExecutionProcesses:
    found = ExecutionProcesses()
    for pid in pids:
        process = identity.identify(pid)
        # Asked again, now that its identity is known: another process may have got this pid since the scan.
        if process is None or execution_id not in _executions_of(pid) or not identity.is_alive(process):
            continue
        if is_agentctl(pid, execution_id):
            found.agentctl.append(process)
        else:
            found.others.append(process)
    return found


def is_agentctl(pid: int, execution_id: str) -> bool:
    """Whether a process of our user was started as the agentctl of this execution."""
    return identity.owner_of(pid) == os.geteuid() and has_agentctl_command_line(pid, execution_id)


def has_agentctl_command_line(pid: int, execution_id: str) -> bool:
    """Whether a process has the command line of this execution's agentctl, which alone is no proof."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except identity.ABSENT:
        return False
    named = [after for word, after in pairwise(arguments) if word == "--execution-id"]
    return AGENTCTL_MODULE in arguments and named == [execution_id]


def recorded_process(state: Mapping[str, Any]) -> ProcessIdentity | None:
    """Return the identity of agentctl that a row's ``state`` recorded; None if there is none."""
    try:
        return ProcessIdentity.from_json(state["process"])
    except (KeyError, TypeError, ValueError):
        return None


def terminate_process(process: ProcessIdentity, grace: float) -> bool:
    """Send TERM, and KILL after ``grace`` seconds; return whether the process is gone. Blocks."""
    if identity.send_signal(process, signal.SIGTERM) and not _wait_until_gone(process, grace):
        return not identity.kill_all([process], 5)
    return True


def kill_leftovers(execution_id: str) -> int:
    """Kill what is left of an execution whose agentctl is gone, and return how many ended. Blocks.

    Scans again until two scans in a row find nothing, because a process may have forked before it was killed.
    Kills nothing once an agentctl of the execution lives.
    """
    ended = empty = 0
    for _ in range(20):
        processes = find_processes(execution_id)
        empty += 1
        if processes.others:
            empty = 0
        if processes.agentctl or empty == 2:
            break
        for other in processes.others:
            if identity.execution_of_process(other.pid) == execution_id and identity.kill_group(other.pid):
                break
        ended += len(processes.others) - len(identity.kill_all(processes.others, 5))
    identity.remove_group(execution_id)
    return ended


def _wait_until_gone(process: ProcessIdentity, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while identity.is_alive(process):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True

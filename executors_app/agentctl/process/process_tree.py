"""Read the descendants of a process from ``/proc``, with bounded work: an agent can start and rename thousands."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from executors_app.agentctl.process.guard_process import command_line_of
from executors_app.agentctl.process.process_roles import ProcessFacts
from executors_app.wire.command_redaction import READ_LENGTH
from executors_app.wire.exhaustion import is_exhausted, raise_if_exhausted

MAX_PROCESSES: Final = 1000
"""Processes of one agent that are read at a time."""
_MAX_FILES: Final = 4000
"""Lists of children that are read for that: each thread of a process has one."""
_MAX_LIST_BYTES: Final = 16 * MAX_PROCESSES
"""Bytes of such a list."""
_MAX_SCANNED: Final = 20_000
"""Processes of the machine that are read instead, on a kernel without such lists."""
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Descendants:
    """Processes below others, nearest first."""

    processes: list[ProcessFacts]
    is_complete: bool
    """False: there are more than are read."""


def descendants_of(roots: Iterable[int], except_pid: int | None = None, *, below_it: bool = True) -> Descendants:
    """Return the living descendants of ``roots``, without ``except_pid`` and, unless ``below_it``, what is below it."""
    children = _ChildLists()
    found: list[ProcessFacts] = []
    waiting: deque[int] = deque()
    seen = set(roots)
    if except_pid is not None and not below_it:
        seen.add(except_pid)
    for root in sorted(seen - {except_pid}):
        waiting += children.of(root)
    while waiting:
        pid = waiting.popleft()
        if pid in seen:
            continue
        seen.add(pid)
        waiting += children.of(pid)
        if pid == except_pid:
            continue
        if len(found) >= MAX_PROCESSES:
            return Descendants(found, is_complete=False)
        try:
            process = read_process(pid)
        except OSError:
            children.is_complete = False
            continue
        if process is not None:
            found.append(process)
    return Descendants(found, is_complete=children.is_complete)


def read_process(pid: int) -> ProcessFacts | None:
    """Return what the kernel says of a process; None if it is gone or a zombie.

    Raises OSError if no descriptors or memory are left to see it with.
    """
    name, fields = _stat_of(pid)
    if not fields:
        return None
    # A process that has overwritten its command line with nothing still has a name, as in the list of ``ps``.
    command = command_line_of(pid, READ_LENGTH) or f"[{name}]"
    cpu_ticks = sum(int(ticks) for ticks in fields[11:15])  # its own, and that of children that it has waited for
    return ProcessFacts(pid, int(fields[1]), int(fields[19]), command, cpu_ticks / _TICKS)


def parent_of(pid: int) -> int:
    """Return the pid of a process's parent; 0 if the process is gone. Raises OSError as `read_process` does."""
    _, fields = _stat_of(pid)
    return int(fields[1]) if fields else 0


class _ChildLists:
    """Reads the children of processes until ``_MAX_FILES`` lists are read."""

    def __init__(self) -> None:
        self.is_complete = True
        self._remaining = _MAX_FILES
        self._scanned: dict[int, list[int]] | None = None

    def of(self, pid: int) -> list[int]:
        """Return the children of a process, including zombies."""
        if self._scanned is not None:
            return self._scanned.get(pid, [])
        try:
            threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208
        except OSError as error:
            self.is_complete &= not is_exhausted(error)
            return []
        if len(threads) > self._remaining:
            self.is_complete = False
        found: list[int] = []
        for thread in threads[: self._remaining]:
            found += self._read(Path(f"/proc/{pid}/task/{thread}/children"))
        self._remaining -= min(len(threads), self._remaining)
        if not found and not _has_child_lists():
            self._scanned = self._scan()
            return self._scanned.get(pid, [])
        return found

    def _read(self, path: Path) -> list[int]:
        try:
            with path.open() as file:
                text = file.read(_MAX_LIST_BYTES)
        except OSError as error:
            self.is_complete &= not is_exhausted(error)
            return []
        if len(text) == _MAX_LIST_BYTES:
            self.is_complete = False
            text = text.rpartition(" ")[0]
        return [int(child) for child in text.split()]

    def _scan(self) -> dict[int, list[int]]:
        children: dict[int, list[int]] = {}
        pids = [entry for entry in os.listdir("/proc") if entry.isdigit()]  # noqa: PTH208
        if len(pids) > _MAX_SCANNED:
            self.is_complete = False
        for pid in map(int, pids[:_MAX_SCANNED]):
            try:
                parent = parent_of(pid)
            except OSError:
                self.is_complete = False
                continue
            if parent:
                children.setdefault(parent, []).append(pid)
        return children


def _has_child_lists() -> bool:
    """Whether the kernel lists children (CONFIG_PROC_CHILDREN)."""
    return Path("/proc/self/task", str(os.getpid()), "children").exists()


def _stat_of(pid: int) -> tuple[str, list[str]]:
    """Return a process's name and the fields of its ``stat`` from the state on; none if it is gone or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError as error:
        raise_if_exhausted(error)
        return "", []
    before, _, after = text.rpartition(")")
    fields = after.split()
    if len(fields) > 19 and fields[0] not in ("Z", "X"):
        return " ".join(before.partition("(")[2].split()), fields
    return "", []

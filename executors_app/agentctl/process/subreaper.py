"""Adopt, reap and end processes that outlive their guard or their agent.

And keep the command lines of those that were killed with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import time
from pathlib import Path
from typing import Final

from executors_app.agentctl.process import identity
from executors_app.agentctl.process.child_environment import AGENT_MARKER
from executors_app.agentctl.process.guard_process import PR_SET_CHILD_SUBREAPER, children_of
from executors_app.agentctl.process.identity import ProcessIdentity
from executors_app.agentctl.protocol import EXECUTION_MARKER

KILLED_PROCESSES_FILE: Final = "ended_with_agent"
MAX_KILLED_PROCESSES: Final = 100
"""Lines that are read."""


class _KilledProcessesFile:
    """Where the guards of this agentctl leave their last words."""

    path: Path | None = None


def set_killed_processes_directory(state_dir: Path) -> None:
    """From now on guards write into this directory; without it they say nothing."""
    _KilledProcessesFile.path = state_dir / KILLED_PROCESSES_FILE


def open_killed_processes_file() -> int:
    """The file for the next guard, open; -1 where there is none. The caller closes it."""
    return _open_file(0)


def clear_killed_processes() -> None:
    """Empty the file, before a new agent begins."""
    opened = _open_file(os.O_TRUNC)
    if opened >= 0:
        os.close(opened)


def _open_file(how: int) -> int:
    if _KilledProcessesFile.path is None:
        return -1
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | how
    with contextlib.suppress(OSError):
        return os.open(_KilledProcessesFile.path, flags, 0o600)
    return -1


def read_killed_processes() -> list[str]:
    """What ended with the last agent, by command line, oldest first; empty where nothing did or nobody knows."""
    if _KilledProcessesFile.path is None:
        return []
    try:
        lines = _KilledProcessesFile.path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
    return [line for line in dict.fromkeys(lines) if line.strip()][:MAX_KILLED_PROCESSES]


_REAP_INTERVAL: Final = 0.02
"""Seconds between two passes: a death hands on its children a moment later."""
_UNCLAIMED: Final = 60.0
"""Seconds after which a dead child that nobody waited for counts as adopted."""


def become_subreaper() -> None:
    """Let orphans among our descendants become our children; OSError if the kernel refuses."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


async def end_orphans(launch: str, since: int, within: float = 5.0) -> list[ProcessIdentity]:
    """End all that is left of the agent marked ``launch``, after its guard was killed.

    ``since``: the guard's start time (``ProcessIdentity.start_time``). Passes are repeated until
    two in a row find nothing; what still lives after ``within`` seconds is returned.
    """
    until, empty = time.monotonic() + within, 0
    left: list[ProcessIdentity] = []
    while empty < 2 and time.monotonic() < until:
        found = _find_orphans(launch, since)
        left = await asyncio.to_thread(identity.kill_all, found, 1.0) if found else []
        empty = 0 if found else empty + 1
        for orphan in found:
            _reap(orphan.pid)
        await asyncio.sleep(_REAP_INTERVAL)
    return left


async def end_marked_processes(mark: str, within: float = 5.0, name: str = EXECUTION_MARKER) -> list[ProcessIdentity]:
    """End all that is marked ``name=mark``; what still lives is returned.

    With an execution's id it ends what an earlier agentctl has left, before anything is started:
    shells and git calls of our own are marked as well.
    """
    until, empty = time.monotonic() + within, 0
    left: list[ProcessIdentity] = []
    while empty < 2 and time.monotonic() < until:
        found = await asyncio.to_thread(identity.find_marked, mark, name)
        left = await asyncio.to_thread(identity.kill_all, found, 1.0) if found else []
        empty = 0 if found else empty + 1
        await asyncio.sleep(_REAP_INTERVAL)
    return left


class Reaper:
    """Takes in the corpses of adopted processes, and never one that somebody of us waits for."""

    def __init__(self) -> None:
        self._seen: dict[ProcessIdentity, float] = {}

    async def run(self, interval: float = 5.0) -> None:
        """Reap for ever."""
        while True:
            self.reap()
            await asyncio.sleep(interval)

    def reap(self) -> int:
        """One pass; how many were taken in."""
        dead = {found: pid for pid in children_of(os.getpid()) if (found := _zombie_identity(pid))}
        now = time.monotonic()
        self._seen = {found: self._seen.get(found, now) for found in dead}
        claimed_by_nobody = [
            pid for found, pid in dead.items() if _is_adopted(pid) or now - self._seen[found] > _UNCLAIMED
        ]
        return sum(_reap(pid) for pid in claimed_by_nobody)


def _find_orphans(launch: str, since: int) -> list[ProcessIdentity]:
    marked = identity.find_marked(launch, AGENT_MARKER)
    ours = (identity.identify(pid) for pid in children_of(os.getpid()) if _is_unmarked(pid))
    fresh = [child for child in ours if child and child.start_time >= since and identity.is_alive(child)]
    return list({*marked, *fresh})


def _is_unmarked(pid: int) -> bool:
    """Whether a child carries no marker; one of our own forks has our environment until it executes."""
    entries = identity.read_environment(pid)
    marks = (f"{EXECUTION_MARKER}=".encode(), f"{AGENT_MARKER}=".encode())
    return not any(entry.startswith(marks) for entry in entries) and entries != identity.read_environment(os.getpid())


def _zombie_identity(pid: int) -> ProcessIdentity | None:
    found = identity.read_stat(pid)
    return identity.identify(pid) if found and found.ended else None


def _is_adopted(pid: int) -> bool:
    """What we start ourselves lives in our session or leads its own."""
    found = identity.read_stat(pid)
    return found is not None and found.session not in (pid, os.getsid(0))


def _reap(pid: int) -> bool:
    with contextlib.suppress(ChildProcessError):
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    return False

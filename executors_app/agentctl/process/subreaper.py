"""Adopt, reap and kill processes that outlive their guard or agent, and record the command lines of those killed."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import time
from pathlib import Path
from typing import Final

from executors_app.agentctl.process.guard_process import PR_SET_CHILD_SUBREAPER, children_of
from executors_app.machine.process import identity
from executors_app.machine.process.identity import ProcessIdentity
from executors_app.machine.process.spawning import AGENT_MARKER
from executors_app.wire.protocol import EXECUTION_MARKER

KILLED_PROCESSES_FILE: Final = "ended_with_agent"
MAX_KILLED_PROCESSES: Final = 100
"""Lines that are read."""


class _KilledProcessesFile:
    """Where guards record the processes that they kill together with the agent."""

    path: Path | None = None


def set_killed_processes_directory(state_dir: Path) -> None:
    """Let guards record killed processes in this directory; without it they record none."""
    _KilledProcessesFile.path = state_dir / KILLED_PROCESSES_FILE


def open_killed_processes_file() -> int:
    """Open the file for the next guard; -1 if there is none. The caller closes it."""
    return _open_file(0)


def clear_killed_processes() -> None:
    """Empty the file before a new agent starts."""
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
    """Return the command lines of processes that were killed with the last agent, oldest first."""
    if _KilledProcessesFile.path is None:
        return []
    try:
        lines = _KilledProcessesFile.path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
    return [line for line in dict.fromkeys(lines) if line.strip()][:MAX_KILLED_PROCESSES]


_REAP_INTERVAL: Final = 0.02
"""Seconds between two passes: the children of a dead process reach us a moment later."""
_UNCLAIMED: Final = 60.0
"""Seconds after which a zombie that nobody waited for counts as adopted."""


def become_subreaper() -> None:
    """Adopt orphans among our descendants from now on; raises OSError if the kernel refuses."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


async def end_orphans(launch: str, since: int, within: float = 5.0) -> list[ProcessIdentity]:
    """Kill what is left of the agent marked ``launch`` after its guard was killed, and return survivors.

    ``since`` is the guard's start time (``ProcessIdentity.start_time``). Repeats until two passes in a row find
    nothing, for at most ``within`` seconds.
    """
    until, empty = time.monotonic() + within, 0
    survivors: list[ProcessIdentity] = []
    while empty < 2 and time.monotonic() < until:
        found = _find_orphans(launch, since)
        if found:
            survivors, empty = await asyncio.to_thread(identity.kill_all, found, 1.0), 0
        else:
            survivors, empty = [], empty + 1
        for orphan in found:
            _reap(orphan.pid)
        await asyncio.sleep(_REAP_INTERVAL)
    return survivors


async def end_marked_processes(
    mark: str, within: float = 5.0, name: str = EXECUTION_MARKER, *, spare: int = 0
) -> list[ProcessIdentity]:
    """Kill all processes marked ``name=mark``, except the pid ``spare``, and return survivors.

    With an execution's id, call it only before anything is started: our own shells and git calls carry that mark too.
    """
    until, empty = time.monotonic() + within, 0
    survivors: list[ProcessIdentity] = []
    while empty < 2 and time.monotonic() < until:
        found = [one for one in await asyncio.to_thread(identity.find_marked, mark, name) if one.pid != spare]
        empty = 0 if found else empty + 1
        if found:
            survivors = await asyncio.to_thread(identity.kill_all, found, 1.0)
            await asyncio.sleep(_REAP_INTERVAL)
    return survivors


class Reaper:
    """Reaps adopted zombies, but never a child that our own code waits for."""

    def __init__(self) -> None:
        self._seen: dict[ProcessIdentity, float] = {}

    async def run(self, interval: float = 5.0) -> None:
        """Reap until cancelled."""
        while True:
            with contextlib.suppress(OSError):  # no descriptors are left to see the children with: next time
                self.reap()
            await asyncio.sleep(interval)

    def reap(self) -> int:
        """Reap once; return how many."""
        dead = {found: pid for pid in children_of(os.getpid()) if (found := _zombie_identity(pid))}
        now = time.monotonic()
        self._seen = {found: self._seen.get(found, now) for found in dead}
        unclaimed = [pid for found, pid in dead.items() if _is_adopted(pid) or now - self._seen[found] > _UNCLAIMED]
        return sum(_reap(pid) for pid in unclaimed)


def _find_orphans(launch: str, since: int) -> list[ProcessIdentity]:
    # Processes that have cleared their environment have no marker: they are our adopted children without one, unless
    # they are older than the guard.
    marked = identity.find_marked(launch, AGENT_MARKER)
    children = (identity.identify(pid) for pid in children_of(os.getpid()) if _is_unmarked(pid))
    fresh = [child for child in children if child and child.start_time >= since and identity.is_alive(child)]
    return list({*marked, *fresh})


def _is_unmarked(pid: int) -> bool:
    """Whether a child has no marker and is not a fork of ours that has yet to exec (it has our environment)."""
    entries = identity.read_environment(pid)
    marks = (f"{EXECUTION_MARKER}=".encode(), f"{AGENT_MARKER}=".encode())
    return not any(entry.startswith(marks) for entry in entries) and entries != identity.read_environment(os.getpid())


def _zombie_identity(pid: int) -> ProcessIdentity | None:
    found = identity.read_stat(pid)
    if found and found.ended:
        return identity.identify(pid)
    return None


def _is_adopted(pid: int) -> bool:
    """Whether a child was adopted: processes that we start are in our session or lead their own."""
    found = identity.read_stat(pid)
    return found is not None and found.session not in (pid, os.getsid(0))


def _reap(pid: int) -> bool:
    with contextlib.suppress(ChildProcessError):
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    return False

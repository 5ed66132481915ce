"""What becomes of processes that outlive their guard or their agentctl: they are ended, on proof.

agentctl is a subreaper: what a killed guard leaves behind becomes its child. Every process that
agentctl starts itself carries the execution's marker (``child_environment``), those of an agent
the agent's marker too; a child without any is an agent's that has emptied its environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import time
from typing import Final

from executors_app.agentctl import identity
from executors_app.agentctl.child_environment import AGENT_MARKER
from executors_app.agentctl.guard_process import PR_SET_CHILD_SUBREAPER, children_of
from executors_app.agentctl.identity import ProcessIdentity
from executors_app.agentctl.protocol import MARKER

_PASS: Final = 0.02
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
        found = _orphans(launch, since)
        left = await asyncio.to_thread(identity.end_all, found, 1.0) if found else []
        empty = 0 if found else empty + 1
        for orphan in found:
            _reap(orphan.pid)
        await asyncio.sleep(_PASS)
    return left


async def end_leftovers(mark: str, within: float = 5.0, name: str = MARKER) -> list[ProcessIdentity]:
    """End all that is marked ``name=mark``; what still lives is returned.

    With an execution's id it ends what an earlier agentctl has left, before anything is started:
    shells and git calls of our own are marked as well.
    """
    until, empty = time.monotonic() + within, 0
    left: list[ProcessIdentity] = []
    while empty < 2 and time.monotonic() < until:
        found = await asyncio.to_thread(identity.marked, mark, name)
        left = await asyncio.to_thread(identity.end_all, found, 1.0) if found else []
        empty = 0 if found else empty + 1
        await asyncio.sleep(_PASS)
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
        dead = {found: pid for pid in children_of(os.getpid()) if (found := _corpse(pid))}
        now = time.monotonic()
        self._seen = {found: self._seen.get(found, now) for found in dead}
        claimed_by_nobody = [
            pid for found, pid in dead.items() if _surely_adopted(pid) or now - self._seen[found] > _UNCLAIMED
        ]
        return sum(_reap(pid) for pid in claimed_by_nobody)


def _orphans(launch: str, since: int) -> list[ProcessIdentity]:
    marked = identity.marked(launch, AGENT_MARKER)
    ours = (identity.of(pid) for pid in children_of(os.getpid()) if _is_unmarked(pid))
    fresh = [child for child in ours if child and child.start_time >= since and identity.is_alive(child)]
    return list({*marked, *fresh})


def _is_unmarked(pid: int) -> bool:
    """Whether a child carries no marker; one of our own forks has our environment until it executes."""
    entries = identity.environment(pid)
    marks = (f"{MARKER}=".encode(), f"{AGENT_MARKER}=".encode())
    return not any(entry.startswith(marks) for entry in entries) and entries != identity.environment(os.getpid())


def _corpse(pid: int) -> ProcessIdentity | None:
    found = identity.stat(pid)
    return identity.of(pid) if found and found.ended else None


def _surely_adopted(pid: int) -> bool:
    """What we start ourselves lives in our session or leads its own."""
    found = identity.stat(pid)
    return found is not None and found.session not in (pid, os.getsid(0))


def _reap(pid: int) -> bool:
    with contextlib.suppress(ChildProcessError):
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    return False

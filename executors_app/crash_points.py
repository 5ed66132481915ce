"""Named places where a test can kill a process, to prove that a crash just there does no harm.

``reached(name)`` does nothing unless the process was armed. Standard library alone, reads no
environment: whoever reads it (the settings, agentctl's child_environment) calls ``arm``.
"""

from __future__ import annotations

import difflib
import os
import signal
from pathlib import Path
from typing import Final

POINTS: Final = frozenset(
    {
        "supervisor.leased",
        "supervisor.launched",
        "supervisor.launch_written",
        "supervisor.agent_started",
        "supervisor.agent_start_written",
        "supervisor.prompt_sending",
        "supervisor.prompt_sent",
        "supervisor.ingest_before_commit",
        "supervisor.ingest_after_commit",
        "supervisor.answer_sent",
        "supervisor.cancel_sent",
        "supervisor.stop_sent",
        "sweep.decided",
        "sweep.written",
        "agentctl.prompt_accepted",
        "agentctl.prompt_delivered",
        "agentctl.token_kept",
        "agentctl.agent_spawned",
        "agentctl.turn_ended",
    }
)
"""Every name there is."""


class _Trap:
    """The one point at which this process is to die."""

    def __init__(self, name: str, countdown: int, reached_dir: Path):
        self.name, self.countdown, self.reached_dir = name, countdown, reached_dir

    def spring(self) -> None:
        """Leave a file named like the point, on the disk, and die without any cleanup.

        Where the file already is, an earlier process has died there: this one goes on.
        """
        try:
            descriptor = os.open(self.reached_dir / self.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return
        os.fsync(descriptor)
        os.kill(os.getpid(), signal.SIGKILL)


_armed: list[_Trap] = []


def arm(spec: str, reached_dir: str | os.PathLike[str]) -> None:
    """Let this process die at ``spec``: ``name``, or ``name:N`` for the N-th time it is reached.

    At it an empty file ``reached_dir/name`` is made; if that is there already, nothing happens, so
    that a process started again with the same environment survives. ValueError for an unknown
    name or a bad N.
    """
    name, _, count = spec.partition(":")
    _check(name)
    if count and (not count.isascii() or not count.isdigit() or int(count) < 1):
        raise ValueError(f"crash point {spec!r}: {count!r} is not a number of times")
    _armed[:] = [_Trap(name, int(count or 1), Path(reached_dir))]


def disarm() -> None:
    """Make every point harmless again."""
    _armed.clear()


def reached(name: str) -> None:
    """Say that the process stands at the point ``name``; ValueError for an unknown name."""
    _check(name)
    for trap in _armed:
        if trap.name == name:
            trap.countdown -= 1
            if trap.countdown == 0:
                trap.spring()


def _check(name: str) -> None:
    if name not in POINTS:
        nearest = difflib.get_close_matches(name, POINTS, n=1, cutoff=0)
        raise ValueError(f"there is no crash point {name!r}; the nearest is {nearest[0]!r}")

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

from executors_app.crash_point_table import POINTS as TABLE

POINTS: Final = frozenset(point.name for point in TABLE)
"""Every name there is; what lies before and behind each is in the table."""

_EACH: Final = "each"


class _Trap:
    """One point at which this process is to die."""

    def __init__(self, spec: str, reached_dir: Path):
        self.name, _, count = spec.partition(":")
        self.each = count == _EACH
        self.countdown = 0 if self.each else _times(spec, count)
        self.reached_dir = reached_dir

    def step_on(self, subject: str) -> None:
        """Note that the point was reached; die there if it is time."""
        with (self.reached_dir / f"{self.name}.log").open("a") as log:
            log.write(f"{subject or '-'}\n")
        if self.each:
            self._spring(f"{self.name}.{subject}", subject)
            return
        self.countdown -= 1
        if self.countdown == 0:
            self._spring(self.name, subject)

    def _spring(self, file: str, subject: str) -> None:
        """Leave a file named like the point, on the disk, and die without any cleanup; it names the session.

        Where the file already is, an earlier process has died there: this one goes on.
        """
        try:
            descriptor = os.open(self.reached_dir / file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return
        os.write(descriptor, subject.encode())
        os.fsync(descriptor)
        os.kill(os.getpid(), signal.SIGKILL)


_armed: list[_Trap] = []
_subject: list[str] = []


def check(spec: str) -> None:
    """Raise ValueError for a spec with an unknown name or a bad N."""
    for one in spec.split(","):
        name, _, count = one.partition(":")
        _check(name)
        if count != _EACH:
            _times(one, count)


def arm(spec: str, reached_dir: str | os.PathLike[str], subject: str = "") -> None:
    """Let this process die at ``spec``: points with commas between them, each ``name``, ``name:N`` or ``name:each``.

    ``name:N`` is the N-th time that this process reaches it, ``name:each`` the first time for each
    session (agentctl, which has one, says which by ``subject``). There a file ``reached_dir/name``
    (``name.<session>``) is made; if that is there already, nothing happens, so that a process started
    again with the same environment survives. ``reached_dir/name.log`` gets a line, the session, each
    time the point is reached. ValueError for an unknown name or a bad N.
    """
    check(spec)
    _armed[:] = [_Trap(one, Path(reached_dir)) for one in spec.split(",")]
    _subject[:] = [subject]


def disarm() -> None:
    """Make every point harmless again."""
    _armed.clear()


def reached(name: str, session: object = "") -> None:
    """Say that the process stands at the point ``name``, for a session; ValueError for an unknown name."""
    _check(name)
    for trap in _armed:
        if trap.name == name:
            trap.step_on(str(session) or _subject[0])


def _times(spec: str, count: str) -> int:
    if count and (not count.isascii() or not count.isdigit() or int(count) < 1):
        raise ValueError(f"crash point {spec!r}: {count!r} is not a number of times")
    return int(count or 1)


def _check(name: str) -> None:
    if name not in POINTS:
        nearest = difflib.get_close_matches(name, POINTS, n=1, cutoff=0)
        raise ValueError(f"there is no crash point {name!r}; the nearest is {nearest[0]!r}")

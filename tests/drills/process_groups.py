"""Processes by parent and by process group."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from executors_app.machine.process import identity


def descendants(pid: int) -> list[int]:
    """Return every process under ``pid``."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError):
            fields = path.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found: list[int] = []
    todo = [pid]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def process_group(pid: int) -> int:
    """Return the process group of ``pid``; 0 when it is gone."""
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def members(groups: Iterable[int]) -> list[int]:
    """Return the living processes of some groups."""
    pids = (int(path.name) for path in Path("/proc").glob("[0-9]*"))
    mine = [identity.identify(pid) for pid in pids if process_group(pid) in groups]
    return [one.pid for one in mine if one is not None and identity.is_alive(one)]


def has_ended(pid: int) -> bool:
    """Return whether a process has ended; a zombie has, and its parent may be slow to collect it."""
    found = identity.read_stat(pid)
    return found is None or found.ended

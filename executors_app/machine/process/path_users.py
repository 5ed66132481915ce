"""Which paths the processes of this machine use: their directories, open files and mapped files."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from executors_app.machine.process import identity
from executors_app.machine.process.identity import list_pids

_LINKS: Final = ("cwd", "root", "exe")
_INITIAL_NAMESPACE: Final = "pid:[4026531836]"
"""The pid namespace of the machine itself, in which every process of the machine is visible."""
_MAPPED: Final = re.compile(rb"^\S+ \S+ \S+ \S+ \S+ +(/.*)$")
_CAPABILITIES: Final = re.compile(rb"^CapPrm:\s*([0-9a-f]+)$", re.MULTILINE)
SECONDS: Final = 10.0
"""Maximum time to look at all processes: agents decide how many there are, and how many files they have open."""
_GONE: Final = (FileNotFoundError, ProcessLookupError, NotADirectoryError)


class ProcessesUnknown(Exception):
    """Not every process that could use the paths can be examined."""


def sees_whole_machine() -> bool:
    """Whether the processes that we see are all of this machine's."""
    return identity.identify_self().pid_namespace == _INITIAL_NAMESPACE


def find_used_paths(folders: tuple[Path, ...]) -> frozenset[str]:
    """Return the paths at or below the folders that any process but this one uses. Raises ProcessesUnknown.

    The folders must be private to our user: then only our own processes can be in them, and those with more rights
    than ours, which are an administrator's and cannot be examined.
    """
    roots = [os.path.realpath(folder) for folder in folders]
    used: set[str] = set()
    until = time.monotonic() + SECONDS
    for pid in list_pids():
        if pid == os.getpid():
            continue
        try:
            for path in _paths_of(pid):
                if time.monotonic() > until:
                    raise ProcessesUnknown("processes have too many files open to look at all of them in time")
                if _is_below(path, roots):
                    used.add(path)
        except _GONE:
            continue
        except PermissionError as error:
            if _may_be_ours(pid):
                raise ProcessesUnknown(f"process {pid} cannot be examined") from error
        except OSError as error:
            raise ProcessesUnknown(f"process {pid} cannot be examined: {error.strerror}") from error
    return frozenset(used)


def _may_be_ours(pid: int) -> bool:
    """Whether a process that cannot be examined may be in a folder of ours: by its user, and its rights."""
    if not Path(f"/proc/{pid}").exists():
        return False
    return identity.owner_of(pid) in (os.geteuid(), None) and not _has_more_rights(pid)


def _has_more_rights(pid: int) -> bool:
    """Whether a process has capabilities that we lack, so that the kernel does not let us examine it."""
    ours, theirs = _capabilities("self"), _capabilities(pid)
    return bool(theirs & ~ours)


def _capabilities(pid: int | str) -> int:
    try:
        found = _CAPABILITIES.search(Path(f"/proc/{pid}/status").read_bytes())
    except identity.ABSENT:
        return 0
    if found is None:
        return 0
    return int(found[1], 16)


def _is_below(path: str, roots: list[str]) -> bool:
    return any(path == root or path.startswith(f"{root}/") for root in roots)


def _paths_of(pid: int) -> Iterator[str]:
    for name in _LINKS:
        try:
            yield str(Path(f"/proc/{pid}/{name}").readlink())
        except _GONE:
            continue  # a kernel thread, or one that has just ended
    with os.scandir(f"/proc/{pid}/fd") as descriptors:
        for entry in descriptors:
            try:
                yield os.readlink(entry.path)  # noqa: PTH115  (there may be very many)
            except _GONE:
                continue
    with open(f"/proc/{pid}/maps", "rb") as file:  # noqa: PTH123
        for line in file:
            if found := _MAPPED.match(line):
                yield os.fsdecode(found[1])

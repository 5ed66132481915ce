"""Runs in a container as the agent's user; appends what a process there sees to a file, as one line of JSON.

``python3 look_around.py FILE``: what this process has, and for every other process the attempts that succeed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROC = Path("/proc")
TOKEN = re.compile(rb"[0-9a-f]{32}\.[0-9a-f]{64}")
"""A launch's token, whatever launch it is."""


def main() -> None:
    """Write the report. Standard input is not read: it may be git's."""
    (into,) = sys.argv[1:]
    report = {
        "user": [*os.getresuid(), *os.getresgid(), *os.getgroups()],
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
        "umask": os.umask(0o022),
        "descriptors": own_descriptors(),
        "environment": dict(os.environ),
        "others": [look_at(int(about.name)) for about in PROC.iterdir() if about.name.isdigit()],
    }
    with Path(into).open("a") as file:
        file.write(json.dumps(report) + "\n")


def own_descriptors() -> dict[str, str]:
    """Return what our open descriptors lead to."""
    found = {}
    for link in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):  # the one by which the directory is read
            found[link.name] = str(link.readlink())
    return found


def look_at(pid: int) -> dict[str, Any]:
    """Return what a process is, which attempts on it succeed, and whether its memory contains a token."""
    about = PROC / str(pid)
    attempts: dict[str, Callable[[], object]] = {
        "signal": lambda: os.kill(pid, 0),
        "environ": (about / "environ").read_bytes,
        "descriptors": lambda: list((about / "fd").iterdir()),
        "descriptor": lambda: (about / "fd" / "0").open("rb").close(),
        "root": lambda: list((about / "root").iterdir()),
        "directory": lambda: list((about / "cwd").iterdir()),
        "maps": (about / "maps").read_bytes,
        "memory": lambda: (about / "mem").open("rb").close(),
        "out of memory score": lambda: (about / "oom_score_adj").write_text("1000"),
        "affinity": lambda: os.sched_setaffinity(pid, os.sched_getaffinity(pid)),
        "priority": lambda: os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, pid)),
    }
    return {
        "pid": pid,
        "user": (about / "status").read_text().partition("\nUid:")[2].split()[:4],
        "command": (about / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1],
        "succeeded": [name for name, attempt in attempts.items() if succeeds(attempt)],
        "token": has_token(about),
    }


def succeeds(attempt: Callable[[], object]) -> bool:
    """Whether an attempt is permitted."""
    try:
        attempt()
    except OSError:
        return False
    return True


def has_token(about: Path) -> bool:
    """Whether a token is in the environment or the memory of a process, as far as they can be read."""
    with contextlib.suppress(OSError):
        if TOKEN.search((about / "environ").read_bytes()):
            return True
        with (about / "mem").open("rb", buffering=0) as memory:
            return any(TOKEN.search(read(memory, *place)) for place in writable(about))
    return False


def writable(about: Path) -> list[tuple[int, int]]:
    """Return start and end of the writable areas of a process."""
    areas = re.findall(r"^([0-9a-f]+)-([0-9a-f]+) rw", (about / "maps").read_text(), re.MULTILINE)
    return [(int(start, 16), int(end, 16)) for start, end in areas]


def read(memory: Any, start: int, end: int) -> bytes:
    """Return an area of memory, or nothing if the kernel refuses."""
    try:
        memory.seek(start)
        return bytes(memory.read(end - start))
    except (OSError, OverflowError, ValueError):
        return b""


if __name__ == "__main__":
    main()

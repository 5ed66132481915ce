"""The control group of one execution: what lives in it is the execution's, whatever its environment says (rule 25).

Where a group of our own can be had (cgroup version 2, and root or a delegated unit), agentctl moves
into one that is named after its execution before it starts anything, so everything that it ever
starts is born into it. Elsewhere the marker in the environment is all there is. Standard library alone.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

_PREFIX: Final = "kandev-"
_VERSION_2: Final = "0::"
"""How the line of version 2 begins in ``/proc/PID/cgroup``."""


def enter(execution_id: str) -> bool:
    """Move this process into the execution's group; False where none can be had."""
    group = _group_named(execution_id)
    if group is None:
        return False
    try:
        group.mkdir(exist_ok=True)
        _move_to(group)
    except OSError:
        remove(execution_id)
        return False
    return True


def leave(execution_id: str) -> None:
    """Move this process out again, and remove the group if nothing else lives in it."""
    group = _group_of("self")
    if group is None or group.name != f"{_PREFIX}{execution_id}":
        return
    with contextlib.suppress(OSError):
        _move_to(group.parent)
        group.rmdir()


def execution_of(pid: int) -> str:
    """The execution whose group a process lives in, or the empty text."""
    name = _path_of(str(pid)).removesuffix(" (deleted)").rpartition("/")[2]
    return name.removeprefix(_PREFIX) if name.startswith(_PREFIX) else ""


def kill(pid: int) -> bool:
    """KILL the whole group that ``pid`` lives in, at once; False where it has none of ours.

    Not for agentctl, which lives in the group itself.
    """
    group = _group_of(str(pid))
    if group is None or not group.name.startswith(_PREFIX):
        return False
    try:
        (group / "cgroup.kill").write_text("1")
    except OSError:  # an old kernel, or no right to: one by one, then
        return False
    return True


def remove(execution_id: str) -> None:
    """Remove the execution's group where nothing lives in it any more."""
    group = _group_named(execution_id)
    if group is not None:
        with contextlib.suppress(OSError):
            group.rmdir()


def _move_to(group: Path) -> None:
    (group / "cgroup.procs").write_text("0")


def _group_named(execution_id: str) -> Path | None:
    """The group of an execution: beside ours if we live in one already, else below ours."""
    here = _group_of("self")
    if here is None or not execution_id.replace("-", "").isalnum():
        return None
    base = here.parent if here.name.startswith(_PREFIX) else here
    return base / f"{_PREFIX}{execution_id}"


def _group_of(pid: str) -> Path | None:
    """The directory of a process's group; None without version 2, or out of our sight."""
    mount, path = _mount(), _path_of(pid)
    if mount is None or not path or ".." in path:
        return None
    return mount / path.strip("/")


def _path_of(pid: str) -> str:
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.removeprefix(_VERSION_2) for line in lines if line.startswith(_VERSION_2)), "")


def _mount() -> Path | None:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines():
            _, place, kind, *_ = line.split(" ")
            if kind == "cgroup2":
                return Path(place)
    return None

"""The control group of one execution.

Enter it, kill what lives in it, and count what the kernel killed for want of memory.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

_GROUP_PREFIX: Final = "kandev-"
_CGROUP_V2_PREFIX: Final = "0::"
"""How the line of version 2 begins in ``/proc/PID/cgroup``."""


def enter_group(execution_id: str) -> bool:
    """Move this process into the execution's group; False where none can be had."""
    group = _group_named(execution_id)
    if group is None:
        return False
    try:
        group.mkdir(exist_ok=True)
        _move_to_group(group)
    except OSError:
        remove_group(execution_id)
        return False
    return True


def leave_group(execution_id: str) -> None:
    """Move this process out again, and remove the group if nothing else lives in it."""
    group = _group_of("self")
    if group is None or group.name != f"{_GROUP_PREFIX}{execution_id}":
        return
    with contextlib.suppress(OSError):
        _move_to_group(group.parent)
        group.rmdir()


def execution_of_process(pid: int) -> str:
    """The execution whose group a process lives in, or the empty text."""
    name = _group_path(str(pid)).removesuffix(" (deleted)").rpartition("/")[2]
    return name.removeprefix(_GROUP_PREFIX) if name.startswith(_GROUP_PREFIX) else ""


def kill_group(pid: int) -> bool:
    """KILL the whole group that ``pid`` lives in, at once; False where it has none of ours.

    Not for agentctl, which lives in the group itself.
    """
    group = _group_of(str(pid))
    if group is None or not group.name.startswith(_GROUP_PREFIX):
        return False
    try:
        (group / "cgroup.kill").write_text("1")
    except OSError:  # an old kernel, or no right to: one by one, then
        return False
    return True


def remove_group(execution_id: str) -> None:
    """Remove the execution's group where nothing lives in it any more."""
    group = _group_named(execution_id)
    if group is not None:
        with contextlib.suppress(OSError):
            group.rmdir()


def _move_to_group(group: Path) -> None:
    (group / "cgroup.procs").write_text("0")


def _group_named(execution_id: str) -> Path | None:
    """The group of an execution: beside ours if we live in one already, else below ours."""
    here = _group_of("self")
    if here is None or not execution_id.replace("-", "").isalnum():
        return None
    base = here.parent if here.name.startswith(_GROUP_PREFIX) else here
    return base / f"{_GROUP_PREFIX}{execution_id}"


def _group_of(pid: str) -> Path | None:
    """The directory of a process's group; None without version 2, or out of our sight."""
    mount, path = _cgroup_mount(), _group_path(pid)
    if mount is None or not path or ".." in path:
        return None
    return mount / path.strip("/")


def _group_path(pid: str) -> str:
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.removeprefix(_CGROUP_V2_PREFIX) for line in lines if line.startswith(_CGROUP_V2_PREFIX)), "")


def _cgroup_mount() -> Path | None:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines():
            _, place, kind, *_ = line.split(" ")
            if kind == "cgroup2":
                return Path(place)
    return None


_MEMORY_EVENT_FILES: Final = (Path("/sys/fs/cgroup/memory.events"), Path("/sys/fs/cgroup/memory/memory.oom_control"))
"""Of cgroup version 2, and of version 1: what a container sees there is its own."""


def count_oom_kills(places: tuple[Path, ...] = _MEMORY_EVENT_FILES) -> int:
    """How many processes were killed so far; 0 where nobody counts."""
    for place in places:
        try:
            lines = place.read_text(encoding="ascii").splitlines()
        except (OSError, ValueError):
            continue
        for line in lines:
            name, _, count = line.partition(" ")
            if name == "oom_kill" and count.isdigit():
                return int(count)
    return 0

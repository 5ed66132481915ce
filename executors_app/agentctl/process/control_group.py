"""The control group (cgroup v2) of one execution: enter it, kill it, and count out-of-memory kills."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

_GROUP_PREFIX: Final = "kandev-"
_CGROUP_V2_PREFIX: Final = "0::"
"""Prefix of the version 2 line in ``/proc/PID/cgroup``."""


def enter_group(execution_id: str) -> bool:
    """Move this process into the execution's group; return False if no group can be created."""
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
    """Move this process out of the group, and remove the group if it is empty."""
    group = _group_of("self")
    if group is None or group.name != f"{_GROUP_PREFIX}{execution_id}":
        return
    with contextlib.suppress(OSError):
        _move_to_group(group.parent)
        group.rmdir()


def execution_of_process(pid: int) -> str:
    """Return the execution whose group a process is in; empty if it is in none."""
    name = _group_path(str(pid)).removesuffix(" (deleted)").rpartition("/")[2]
    return name.removeprefix(_GROUP_PREFIX) if name.startswith(_GROUP_PREFIX) else ""


def kill_group(pid: int) -> bool:
    """Kill the whole group of ``pid`` at once; return False if it is in none of ours.

    agentctl must not call it, because it is in the group itself.
    """
    group = _group_of(str(pid))
    if group is None or not group.name.startswith(_GROUP_PREFIX):
        return False
    try:
        (group / "cgroup.kill").write_text("1")
    except OSError:  # an old kernel, or no permission: the caller kills one by one
        return False
    return True


def remove_group(execution_id: str) -> None:
    """Remove the execution's group if it is empty."""
    group = _group_named(execution_id)
    if group is not None:
        with contextlib.suppress(OSError):
            group.rmdir()


def _move_to_group(group: Path) -> None:
    (group / "cgroup.procs").write_text("0")


def _group_named(execution_id: str) -> Path | None:
    """Return the group of an execution: a sibling of ours if we are in such a group, else a child of ours."""
    here = _group_of("self")
    if here is None or not execution_id.replace("-", "").isalnum():
        return None
    base = here.parent if here.name.startswith(_GROUP_PREFIX) else here
    return base / f"{_GROUP_PREFIX}{execution_id}"


def _group_of(pid: str) -> Path | None:
    """Return the directory of a process's group; None without cgroup v2, or if it is outside of our namespace."""
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
            _, mount, kind, *_ = line.split(" ")
            if kind == "cgroup2":
                return Path(mount)
    return None


_MEMORY_EVENT_FILES: Final = (Path("/sys/fs/cgroup/memory.events"), Path("/sys/fs/cgroup/memory/memory.oom_control"))
"""For cgroup version 2 and version 1; a container sees its own counters there."""


def count_oom_kills(paths: tuple[Path, ...] = _MEMORY_EVENT_FILES) -> int:
    """Return how many processes the kernel has killed for lack of memory; 0 if there is no counter."""
    for path in paths:
        try:
            lines = path.read_text(encoding="ascii").splitlines()
        except (OSError, ValueError):
            continue
        for line in lines:
            name, _, count = line.partition(" ")
            if name == "oom_kill" and count.isdigit():
                return int(count)
    return 0

"""What a container on this machine's own engine sees of its disk.

Every source is a directory whose parent no agent can write. Below a directory that an agent can write, a mount
could be turned to any place of this machine: the agent puts a symbolic link there, and the engine follows it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any


def bind(source: Path, target: Path | str, *, read_only: bool = False) -> dict[str, Any]:
    """A bind mount as the engine takes it."""
    return {"Type": "bind", "Source": str(source), "Target": str(target), "ReadOnly": read_only}


def volume(name: str, target: Path | str) -> dict[str, Any]:
    """A volume as the engine takes it."""
    # An empty volume would be given what the image has there, and its owner.
    return {"Type": "volume", "Source": name, "Target": str(target), "VolumeOptions": {"NoCopy": True}}


def sources_of(mounts: Iterable[Any]) -> set[str]:
    """The directories of this machine that a listed container has mounted."""
    return {str(mount["Source"]) for mount in mounts or () if mount.get("Source")}

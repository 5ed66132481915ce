"""What a session's container gets to see of this machine's disk.

The worktree is a real one of the team's repository, so branch and recovery ref are in the repository at once
and outlive container and worktree. A worktree's ``.git`` names its place in the repository, so both are mounted
at their own paths. Of the repository's git directory only what a commit writes may be written: objects, refs,
their logs and the worktree's own record. Its configuration and hooks, which git of people on this machine
obeys, and the records of other worktrees are read-only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from executors_app.agentctl.places.git import common_directory
from executors_app.containers.site import HOME, STATE
from executors_app.errors import LaunchFailed

_WRITTEN: Final = ("objects", "refs", "logs", "lfs")


@dataclass(frozen=True, slots=True)
class Mounted:
    """A place of this machine, and where the container sees it."""

    source: str
    target: str
    read_only: bool = False


def mounts(worktree: Path, repository: Path, state_dir: Path, home: Path) -> list[Mounted]:
    """All of them, outer ones first; makes what is missing. Raises LaunchFailed, RepositoryUnusable, OSError."""
    common = common_directory(repository)
    record = _record(worktree)
    (common / "logs").mkdir(exist_ok=True)
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    git = [Mounted(str(common), str(common), read_only=True)]
    git += [Mounted(str(common / name), str(common / name)) for name in _WRITTEN if (common / name).is_dir()]
    git += [Mounted(str(place), str(place), read_only=True) for place in _borrowed_objects(common)]
    return [
        Mounted(str(state_dir), STATE),
        Mounted(str(home), HOME),
        *git,
        Mounted(str(record), str(record)),
        Mounted(str(worktree), str(worktree)),
    ]


def _record(worktree: Path) -> Path:
    """What the repository remembers of the worktree."""
    pointer = (worktree / ".git").read_text()
    record = Path(pointer.removeprefix("gitdir:").strip())
    if not record.is_dir():
        raise LaunchFailed(f"The worktree {worktree} has no record in its repository.")
    return record


def _borrowed_objects(common: Path) -> Iterator[Path]:
    """Object stores of other repositories that this one leans on."""
    try:
        lines = (common / "objects" / "info" / "alternates").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        place = (common / "objects" / line).resolve()
        if line and not line.startswith("#") and place.is_dir():
            yield place

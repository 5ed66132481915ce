"""What ended executions leave in our own data directory, and whether it may go.

A directory is first renamed, then emptied: a half-emptied one is never taken for a state directory,
and whoever comes after a crash finishes it.
"""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from executors_app.agentctl import journal_files
from executors_app.agentctl.places import local_processes
from executors_app.agentctl.places.local_launch import is_free
from executors_app.local_disk import disk, places_of

_FOLDERS: Final = ("agent_homes", "archives", "workspaces")
GOING: Final = ".going-"
"""How the name of a directory begins that is being removed."""


def state_directories() -> Iterator[str]:
    """Execution ids of the state directories on this disk."""
    folder = places_of(str(uuid.UUID(int=0))).path.parent
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if _is_id(path.name) and path.is_dir() and not path.is_symlink():
            yield path.name


def living() -> frozenset[str]:
    """Executions of which any process lives on this machine; one look at all."""
    return frozenset(local_processes.look_around())


def is_idle(execution_id: str, living_ones: frozenset[str]) -> bool:
    """Whether nothing of an execution lives here: no marked process, and nobody holds its lock."""
    if execution_id in living_ones:
        return False
    lock = places_of(execution_id).lock_file
    try:
        return is_free(lock)
    except FileNotFoundError:
        return True
    except OSError:
        return False


def is_read(execution_id: str, epoch: str, seq: int) -> bool:
    """Whether every line of its journal stands before a cursor; what cannot be read is not known to be."""
    journal = journal_files.journal_directory(places_of(execution_id).path)
    if not journal.is_dir():
        return True
    try:
        if journal_files.epoch_of(journal) not in (epoch, None):
            return False
        return next(journal_files.read_lines(journal, seq, epoch), None) is None
    except (OSError, ValueError):
        return False


def remove_state(execution_id: str) -> bool:
    """Remove the state directory of an execution that is proven to be over; True when it is gone. Raises OSError."""
    return _remove(places_of(execution_id).path)


def remove_home(session_id: str) -> bool:
    """Remove the home that agents in containers had in a deleted session; True if there was one. Raises OSError."""
    return _remove(disk().root / "agent_homes" / session_id)


def has_home(session_id: str) -> bool:
    """Whether a session has such a home."""
    return (disk().root / "agent_homes" / session_id).is_dir()


def has_workspace(session_id: str) -> bool:
    """Whether the workspace that a session had in containers of this machine is here."""
    return _is_directory(workspace_of(session_id))


def remove_workspace(session_id: str) -> bool:
    """Remove the workspace of a deleted session; True if there was one. Raises OSError."""
    return _remove(workspace_of(session_id))


def workspace_of(session_id: str) -> Path:
    """Where it is."""
    return disk().root / "workspaces" / session_id


def finish() -> int:
    """Empty what an earlier run has renamed and not emptied; how many. Raises OSError."""
    root = disk().root
    folders = (places_of(str(uuid.UUID(int=0))).path.parent, *(root / name for name in _FOLDERS))
    found = [path for folder in folders if folder.is_dir() for path in folder.glob(f"{GOING}*")]
    for path in found:
        _empty(path)
    return len(found)


def _is_directory(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _remove(path: Path) -> bool:
    if not _is_directory(path):
        return False
    going = path.with_name(f"{GOING}{path.name}")
    path.rename(going)
    _empty(going)
    return True


def _empty(going: Path) -> None:
    """Remove it, however deep it is nested and whatever an agent has closed against writing; follows no link."""
    if _rm(going):
        subprocess.run(["chmod", "-R", "u+rwX", "--", str(going)], capture_output=True, check=False)
        if said := _rm(going):
            raise OSError(f"{going} cannot be removed: {said}")


def _rm(path: Path) -> str:
    """Let rm remove it, because Python's own way ends at a thousand levels; what is in the way, if anything."""
    done = subprocess.run(["rm", "-rf", "--", str(path)], capture_output=True, text=True, errors="replace", check=False)
    return done.stderr[:500] if done.returncode else ""


def _is_id(name: str) -> bool:
    try:
        return str(uuid.UUID(name)) == name
    except ValueError:
        return False

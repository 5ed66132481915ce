"""What has changed inside the submodules of a workspace, for its pages.

Each submodule is examined with what ``WorkspaceGit.inside`` allows of its settings, so none of its filters runs.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from executors_app.agentctl.workspace.status_format import STATUS, parse_git_status
from executors_app.machine.git.submodules import find_repository, is_submodule_path
from executors_app.machine.git.workspace_git import GitError, WorkspaceGit
from executors_app.wire.protocol import validation_error

SIDES: Final = ("staged", "unstaged", "untracked", "conflicted")
_MAX_SUBMODULES: Final = 50
_MAX_FILES: Final = 200
"""Files that are named in each submodule."""
_LISTING_LIMIT: Final = 64 << 20
_STATUS_LIMIT: Final = 1 << 20
_SECONDS: Final = 10.0
_GITLINK: Final = b"160000 "


def list_submodule_changes(git: WorkspaceGit) -> list[dict[str, Any]]:
    """Return ``[{path, files: [{path, change, side}], count, problem}]`` of submodules with changes, outer ones first.

    All paths begin at the root of the workspace. ``problem`` says why a submodule could not be examined.
    """
    found: list[dict[str, Any]] = []
    deadline = time.monotonic() + _SECONDS
    waiting = deque((git, b"", path) for path in _present_submodules(git))
    opened: list[WorkspaceGit] = []
    try:
        for _ in range(_MAX_SUBMODULES):
            if not waiting:
                break
            outer, prefix, name = waiting.popleft()
            path = prefix + name
            try:
                inner = _open(git, outer, name)
                opened.append(inner)
                inner.deadline = deadline
                found += _changes_in(inner, path)
                waiting += ((inner, path + b"/", each) for each in _present_submodules(inner))
            except (ValueError, OSError, GitError) as error:
                found.append({"path": _text(path), "files": [], "count": 0, "problem": str(error)[:300]})
    finally:
        for inner in opened:
            inner.close()
    return found


def _present_submodules(git: WorkspaceGit) -> list[bytes]:
    """Return the paths of the submodules in the index that have a repository."""
    listed = git.run("ls-files", "-z", "--stage", limit=_LISTING_LIMIT).data.split(b"\0")
    paths = dict.fromkeys(entry.partition(b"\t")[2] for entry in listed if entry.startswith(_GITLINK))
    return [
        path for path in paths if is_submodule_path(path) and os.path.lexists(git.root / os.fsdecode(path) / ".git")
    ]


def _open(git: WorkspaceGit, outer: WorkspaceGit, name: bytes) -> WorkspaceGit:
    find_repository(outer.root, name)
    return git.inside(outer.root / os.fsdecode(name))


def _changes_in(inner: WorkspaceGit, path: bytes) -> list[dict[str, Any]]:
    status = parse_git_status(inner.compare(*STATUS, limit=_STATUS_LIMIT).fields)
    files = []
    for side in SIDES:
        for entry in status[side]:
            if isinstance(entry, dict):
                name, change = entry["path"], entry["change"]
            else:
                name, change = entry, side
            files.append({"path": f"{_text(path)}/{name}", "change": change, "side": side})
    if not files:
        return []
    return [{"path": _text(path), "files": files[:_MAX_FILES], "count": len(files), "problem": ""}]


def _text(path: bytes) -> str:
    return path.decode("utf-8", "replace")


@contextmanager
def repository_of(git: WorkspaceGit, path: str) -> Iterator[tuple[WorkspaceGit, str]]:
    """Yield git for the innermost submodule that contains a file, and the file's path in it; raises ApiError.

    Outside of all submodules, that is the workspace itself.
    """
    opened: list[WorkspaceGit] = []
    inside, rest = git, path
    try:
        while name := _submodule_on_the_way(inside, rest):
            try:
                inner = _open(git, inside, os.fsencode(name))
            except (ValueError, OSError) as error:
                raise validation_error(f"{path}: {error}", path=path) from error
            opened.append(inner)
            inside, rest = inner, rest[len(name) + 1 :]
        yield inside, rest
    finally:
        for inner in opened:
            inner.close()


def submodule_around(git: WorkspaceGit, path: str) -> str:
    """Return the outermost submodule that contains a file; empty if none does."""
    return _submodule_on_the_way(git, path)


def _submodule_on_the_way(git: WorkspaceGit, path: str) -> str:
    parts = path.split("/")
    folders = ["/".join(parts[:length]) for length in range(1, len(parts))]
    present = [folder for folder in folders if os.path.lexists(git.root / folder / ".git")]
    if present:
        return next((folder for folder in present if _is_submodule(git, folder)), "")
    return ""


def _is_submodule(git: WorkspaceGit, path: str) -> bool:
    listed: Sequence[bytes] = git.run("--literal-pathspecs", "ls-files", "-z", "--stage", "--", path).fields
    return any(entry.startswith(_GITLINK) and entry.partition(b"\t")[2] == os.fsencode(path) for entry in listed)

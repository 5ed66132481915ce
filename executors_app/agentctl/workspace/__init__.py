"""The workspace of an execution: served with and without an agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

_HEAD_PREFIX: Final = "ref: refs/heads/"
_HEAD_LIMIT: Final = 4096


def describe(workspace: Path) -> dict[str, Any]:
    """Where it is, whether it is there, and its branch; cheap."""
    return {"path": str(workspace), "exists": workspace.is_dir(), "branch": _branch(workspace)}


def _branch(workspace: Path) -> str | None:
    """The checked-out branch, read without git; null if there is none."""
    try:
        head = _git_directory(workspace) / "HEAD"
        if not head.is_file():
            return None
        with head.open(encoding="utf-8", errors="replace") as file:
            text = file.read(_HEAD_LIMIT).strip()
    except OSError:
        return None
    return text.removeprefix(_HEAD_PREFIX) if text.startswith(_HEAD_PREFIX) else None


def _git_directory(workspace: Path) -> Path:
    dot_git = workspace / ".git"
    if not dot_git.is_file():
        return dot_git
    with dot_git.open(encoding="utf-8", errors="replace") as file:
        return workspace / file.read(_HEAD_LIMIT).removeprefix("gitdir:").strip()

"""Working trees with uncommitted work, and their state as a user sees it."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from executors_app.agentctl.workspace.agent_preparation import prepare_workspace
from executors_app.agentctl.workspace.snapshots import Snapshot, take_snapshot
from executors_app.agentctl.workspace.working_tree import SnapshotLimits
from executors_app.machine.git import worktrees
from executors_app.machine.git.workspace_git import WorkspaceGit
from executors_app.machine.git.worktrees import Worktree
from executors_app.wire.protocol import EXECUTION_MARKER
from tests.executors.repositories import run_git

SESSION = "12345678-90ab-4def-9234-567890abcdef"
REF = f"refs/kandev/recovery/{SESSION}"


def git_of(root: Path) -> WorkspaceGit:
    """Return agentctl's git for a working tree."""
    return WorkspaceGit(root, {EXECUTION_MARKER: "execution-1"})


def snapshot_tree(root: Path, limits: SnapshotLimits = SnapshotLimits()) -> Snapshot:  # noqa: B008
    """Take a recovery snapshot, as agentctl does."""
    return take_snapshot(git_of(root), SESSION, root.parent / f"{root.name}.copy", "turn_end", limits)


LOCAL = ("-c", "protocol.file.allow=always")
"""Options with which git fetches a submodule from another directory."""


def add_submodule(repository: Path, library: Path, name: str = "sub") -> None:
    """Add a submodule and commit it."""
    run_git(repository, *LOCAL, "submodule", "--quiet", "add", str(library), name)
    run_git(repository, "commit", "--quiet", "-m", "with a submodule")


def start_session(repository: Path, directory: Path) -> Worktree:
    """Create a session's worktree, as agentctl prepares it for an agent."""
    made = worktrees.session_worktree(directory / "data", SESSION)
    worktrees.make_worktree(repository, "", made, existed=False)
    prepare_workspace(git_of(made.path), "")
    return made


RunGit = Callable[..., str]
"""Runs ``git ARGUMENTS`` in a working tree: here, or in its sandbox."""


def make_six(root: Path, git: RunGit | None = None) -> None:
    """Create three modified files, two untracked ones and a staged one, on a commit that has the three."""
    git = git or partial(run_git, root)
    for name in ("one", "two", "three"):
        (root / name).write_text("before\n")
        git("add", name)
        git("-c", "user.name=Test", "-c", "user.email=test@example.org", "commit", "--quiet", "-m", f"Write {name}")
        (root / name).write_text("after\n")
    (root / "untracked").write_text("new\n")
    (root / "with space\nand line").write_text("new too\n")
    (root / "staged").write_text("staged\n")
    git("add", "staged")


def state_of(root: Path, git: RunGit | None = None) -> tuple[str, dict[str, tuple[bytes, int]]]:
    """Return git's status of a working tree, and every file in it with its mode."""
    files = {}
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name != ".git"]
        for path in (Path(folder) / name for name in names if name != ".git"):
            content = os.readlink(path).encode() if path.is_symlink() else path.read_bytes()  # noqa: PTH115
            files[str(path.relative_to(root))] = (content, path.lstat().st_mode)
    git = git or partial(run_git, root)
    return git("status", "--porcelain", "--untracked-files=all"), files

"""Working trees with work that is not committed, and what a person would see of them."""

from __future__ import annotations

import os
from pathlib import Path

from executors_app.agentctl.protocol import MARKER
from executors_app.agentctl.workspace.git import Git
from executors_app.agentctl.workspace.snapshots import Limits, Snapshot, take
from tests.executors.repositories import commit, run_git

SESSION = "12345678-90ab-4def-9234-567890abcdef"
REF = f"refs/kandev/recovery/{SESSION}"


def git_of(root: Path) -> Git:
    """agentctl's git."""
    return Git(root, {MARKER: "execution-1"})


def keep(root: Path, limits: Limits = Limits()) -> Snapshot:  # noqa: B008
    """Take a recovery snapshot, as agentctl does."""
    return take(git_of(root), SESSION, root.parent / f"{root.name}.copy", "turn_end", limits)


def make_six(root: Path) -> None:
    """Three modified files, two untracked ones and a staged one, on a commit that has the three."""
    for name in ("one", "two", "three"):
        commit(root, name, "before\n")
        (root / name).write_text("after\n")
    (root / "untracked").write_text("new\n")
    (root / "with space\nand line").write_text("new too\n")
    (root / "staged").write_text("staged\n")
    run_git(root, "add", "staged")


def state_of(root: Path) -> tuple[str, dict[str, tuple[bytes, int]]]:
    """What git says of a working tree, and every file in it with its mode."""
    files = {}
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name != ".git"]
        for path in (Path(folder) / name for name in names if name != ".git"):
            content = os.readlink(path).encode() if path.is_symlink() else path.read_bytes()  # noqa: PTH115
            files[str(path.relative_to(root))] = (content, path.lstat().st_mode)
    return run_git(root, "status", "--porcelain", "--untracked-files=all"), files

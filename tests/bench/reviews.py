"""Listing what a branch has changed, and reading the lines of the first files, beside `git diff` in a terminal."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from executors_app.agentctl.workspace import branch_review
from executors_app.machine.git.branch_changes import MAX_PATHS
from executors_app.machine.git.workspace_git import WorkspaceGit
from executors_app.wire.protocol import EXECUTION_MARKER
from tests.bench.figures import Figure, in_turn

_BASE: Final = "main"
_IN_FOLDER: Final = 20
_LINES: Final = 200
_CHANGED: Final = 10
"""Every tenth line of a file differs."""


def of_a_branch(home: Path, files: int, rounds: int) -> list[Figure]:
    """Measure the best rounds of a branch with so many changed files, half of which are not committed."""
    with TemporaryDirectory(dir=home, prefix="reviews-") as place:
        root = Path(place) / "workspace"
        paths = _make_branch(root, files)
        git = WorkspaceGit(root, {EXECUTION_MARKER: "bench"})
        shown = paths[:MAX_PATHS]
        try:
            listed, floor, read, patch = map(
                min,
                asyncio.run(
                    in_turn(
                        rounds,
                        lambda: branch_review.list_branch_changes(git, _BASE),
                        lambda: _git(root, "diff", "--numstat", _BASE),
                        lambda: branch_review.branch_hunks(git, _BASE, shown, 3),
                        lambda: _git(root, "diff", _BASE, "--", *shown),
                    )
                ),
            )
        finally:
            git.close()
    return [
        Figure(f"{files:,} changed files, listed", listed, "`git diff --numstat`", floor),
        Figure(f"{files:,} changed files, the lines of the first {len(shown)}", read, "`git diff` of these", patch),
    ]


def _make_branch(root: Path, files: int) -> list[str]:
    paths = [f"src/{number // _IN_FOLDER:03}/module_{number:04}.py" for number in range(files)]
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("".join(f"value_{number} = {number}\n" for number in range(_LINES)))
    _git(root, "init", "--quiet", f"--initial-branch={_BASE}")
    _commit(root)
    _git(root, "switch", "--quiet", "--create", "work")
    for number, path in enumerate(paths):
        _change(root / path)
        if number == files // 2:
            _commit(root)
    return paths


def _change(path: Path) -> None:
    lines = path.read_text().splitlines(keepends=True)
    for at in range(0, _LINES, _CHANGED):
        lines[at] = f"changed_{at} = None\n"
    path.write_text("".join(lines))


def _commit(root: Path) -> None:
    _git(root, "add", "--all")
    _git(root, "-c", "user.name=A", "-c", "user.email=a@example.org", "commit", "--quiet", "-m", "Work")


def _git(root: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(root), *words], check=True, stdout=subprocess.DEVNULL)

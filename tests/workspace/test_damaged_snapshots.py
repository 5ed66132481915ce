"""A damaged snapshot is skipped: the next one is taken, and the worktree is rebuilt without it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from executors_app.machine.git import worktrees
from executors_app.machine.git.worktrees import Worktree
from tests.executors.repositories import run_git
from tests.workspace.trees import REF, make_six, snapshot_tree

Damage = Callable[[Path, str], object]


def _ref_says(content: str) -> Damage:
    return lambda repository, commit: (repository / ".git" / REF).write_text(content)


def _names_a_blob(repository: Path, commit: str) -> None:
    (repository / ".git" / REF).write_text(run_git(repository, "rev-parse", "HEAD:README") + "\n")


def _object_is(repository: Path, name: str, content: bytes | None) -> None:
    path = repository / ".git" / "objects" / name[:2] / name[2:]
    path.chmod(0o600)
    path.unlink()
    if content is not None:
        path.write_bytes(content)


DAMAGES: dict[str, Damage] = {
    "garbage": _ref_says("garbage\n"),
    "empty": _ref_says(""),
    "a missing commit": _ref_says("1" * 40 + "\n"),
    "a blob": _names_a_blob,
    "an empty commit object": lambda repository, commit: _object_is(repository, commit, b""),
    "a lost tree": lambda repository, commit: _object_is(
        repository, run_git(repository, "rev-parse", f"{commit}^{{tree}}"), None
    ),
}
every_damage = pytest.mark.parametrize("damage", DAMAGES.values(), ids=list(DAMAGES))


@every_damage
def test_damaged_snapshot_is_followed_by_a_good_one(repository: Path, worktree: Worktree, damage: Damage) -> None:
    make_six(worktree.path)
    damage(repository, snapshot_tree(worktree.path).commit)
    (worktree.path / "one").write_text("later\n")
    assert snapshot_tree(worktree.path).changed
    assert run_git(worktree.path, "cat-file", "-p", f"{REF}:one") == "later"


@every_damage
def test_worktree_is_rebuilt_without_a_damaged_snapshot(repository: Path, worktree: Worktree, damage: Damage) -> None:
    make_six(worktree.path)
    taken = snapshot_tree(worktree.path)
    run_git(repository, "worktree", "remove", "--force", str(worktree.path))
    damage(repository, taken.commit)
    worktrees.make_worktree(repository, "", worktree, existed=True)
    assert (worktree.path / "one").read_text() != "after\n"
    assert run_git(worktree.path, "branch", "--show-current") == worktree.branch
    assert run_git(worktree.path, "status", "--porcelain") == ""

"""A damaged snapshot is skipped: the next one is taken, and the worktree is rebuilt without it."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from executors_app.machine.git import recovery_snapshots, ref_locks, worktrees
from executors_app.machine.git.workspace_git import GitError
from executors_app.machine.git.worktrees import Worktree
from tests.executors.repositories import commit, run_git
from tests.workspace.trees import REF, SESSION, make_six, snapshot_tree

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
    note = worktrees.make_worktree(repository, "", worktree, existed=True)
    assert note == recovery_snapshots.NO_SNAPSHOT_NOTE
    assert (worktree.path / "one").read_text() != "after\n"
    assert run_git(worktree.path, "branch", "--show-current") == worktree.branch
    assert run_git(worktree.path, "status", "--porcelain") == ""


def _lock_of(repository: Path, ref: str = REF) -> Path:
    lock = repository / ".git" / f"{ref}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.touch()
    return lock


@pytest.mark.parametrize("earlier", [False, True])
def test_lock_file_of_a_killed_git_does_not_block_snapshots(
    repository: Path, worktree: Worktree, earlier: bool
) -> None:
    if earlier:
        snapshot_tree(worktree.path)
    lock = _lock_of(repository)
    (worktree.path / "new").write_text("x\n")
    taken = snapshot_tree(worktree.path)
    assert run_git(repository, "rev-parse", REF) == taken.commit
    assert not lock.exists()


def test_lock_file_on_commits_that_are_set_aside_does_not_block_snapshots(repository: Path, worktree: Worktree) -> None:
    (worktree.path / "new").write_text("x\n")
    first = snapshot_tree(worktree.path).commit
    kept = REF.replace("recovery", "kept") + f"/{first[:16]}"
    _lock_of(repository, kept)
    run_git(worktree.path, "switch", "--quiet", "--orphan", "elsewhere")
    run_git(worktree.path, "commit", "--quiet", "--allow-empty", "-m", "Start again")
    snapshot_tree(worktree.path)
    assert run_git(repository, "rev-parse", kept) == first


def test_lock_file_is_not_removed_while_a_git_of_ours_may_need_it(
    repository: Path, worktree: Worktree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ref_locks, "_OURS_SECONDS", 0.1)
    lock = _lock_of(repository)
    folder = os.open(repository / ".git" / "refs", os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    try:
        with pytest.raises(GitError, match="lock"):
            snapshot_tree(worktree.path)
    finally:
        os.close(folder)
    assert lock.exists()


def test_lock_file_that_somebody_else_releases_is_awaited(
    repository: Path, worktree: Worktree, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = _lock_of(repository)
    monkeypatch.setattr(time, "sleep", lambda seconds: lock.unlink(missing_ok=True))
    assert snapshot_tree(worktree.path).changed


def test_lock_file_does_not_block_the_rebuilding_of_a_worktree(repository: Path, worktree: Worktree) -> None:
    (worktree.path / "new").write_text("x\n")
    snapshot_tree(worktree.path)
    head = run_git(worktree.path, "rev-parse", "HEAD")
    shutil.rmtree(worktree.path)
    run_git(repository, "worktree", "prune")
    run_git(repository, "branch", "-D", worktree.branch)
    lock = _lock_of(repository, f"refs/heads/{worktree.branch}")

    worktrees.make_worktree(repository, "", worktree, existed=True)

    assert run_git(repository, "rev-parse", f"refs/heads/{worktree.branch}") == head
    assert (worktree.path / "new").read_text() == "x\n"
    assert not lock.exists()


def test_lock_file_does_not_block_what_a_rebuild_sets_aside(repository: Path, worktree: Worktree) -> None:
    (worktree.path / "new").write_text("x\n")
    taken = snapshot_tree(worktree.path).commit
    commit(worktree.path, "later", "y\n")
    kept = REF.replace("recovery", "kept") + f"/{taken[:16]}"
    _lock_of(repository, kept)
    shutil.rmtree(worktree.path)

    worktrees.make_worktree(repository, "", worktree, existed=True)

    assert run_git(repository, "rev-parse", kept) == taken


def test_lock_file_does_not_block_a_new_branch(repository: Path, worktree: Worktree, tmp_path: Path) -> None:
    other = worktrees.session_worktree(tmp_path / "other", SESSION[::-1])
    lock = _lock_of(repository, f"refs/heads/{other.branch}")

    worktrees.make_worktree(repository, "", other, existed=False)

    assert (other.path / ".git").exists()
    assert not lock.exists()

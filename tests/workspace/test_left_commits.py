"""Commits that were made beside the branch and left within one turn survive the loss of the workspace."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from executors_app.agentctl.workspace import left_commits
from executors_app.agentctl.workspace.left_commits import RefMemory
from executors_app.agentctl.workspace.snapshots import Snapshot, take_snapshot
from executors_app.machine.git import worktrees
from executors_app.machine.git.recovery_snapshots import KEPT_PREFIX
from executors_app.machine.git.worktrees import Worktree
from tests.executors.repositories import commit, run_git
from tests.workspace.trees import SESSION, git_of

KEPT = f"{KEPT_PREFIX}{SESSION}/"
AS_TEST = ("-c", "user.name=Test", "-c", "user.email=test@example.org")


def snapshot(root: Path, seen: RefMemory | None = None) -> Snapshot:
    seen = seen or RefMemory(owns_repository=True)
    return take_snapshot(git_of(root), SESSION, root.parent / "copy", "turn_end", seen=seen)


def kept(root: Path) -> set[str]:
    return set(run_git(root, "for-each-ref", "--format=%(objectname)", KEPT).split())


def on_a_new_branch(root: Path) -> str:
    run_git(root, "switch", "--quiet", "-c", "x")
    made = commit(root, "work", "x\n")
    run_git(root, "switch", "--quiet", "-")
    return made


def on_a_branch_deleted_since(root: Path) -> str:
    made = on_a_new_branch(root)
    run_git(root, "branch", "--quiet", "-D", "x")
    return made


def on_no_branch(root: Path) -> str:
    own = run_git(root, "branch", "--show-current")
    run_git(root, "checkout", "--quiet", "--detach")
    commit(root, "first", "1\n")
    made = commit(root, "second", "2\n")
    run_git(root, "switch", "--quiet", own)
    return made


def in_a_stash(root: Path) -> str:
    (root / "README").write_text("half done\n")
    run_git(root, *AS_TEST, "stash", "--quiet")
    return run_git(root, "rev-parse", "refs/stash")


def behind_a_branch_that_was_never_checked_out(root: Path) -> str:
    tree = run_git(root, "rev-parse", "HEAD^{tree}")
    made = run_git(root, *AS_TEST, "commit-tree", tree, "-p", "HEAD", "-m", "beside")
    run_git(root, "branch", "side", made)
    return made


def in_another_worktree(root: Path) -> str:
    run_git(root, "worktree", "add", "--quiet", "-b", "other", str(root.parent / "other"))
    return commit(root.parent / "other", "work", "x\n")


LEAVES = [
    on_a_new_branch,
    on_a_branch_deleted_since,
    on_no_branch,
    in_a_stash,
    behind_a_branch_that_was_never_checked_out,
    in_another_worktree,
]


@pytest.mark.parametrize("leave", LEAVES)
def test_left_commit_is_set_aside_and_announced(worktree: Worktree, leave: Callable[[Path], str]) -> None:
    seen = RefMemory(owns_repository=True)
    before = snapshot(worktree.path, seen)
    made = leave(worktree.path)
    after = snapshot(worktree.path, seen)
    assert kept(worktree.path) == {made}
    assert (after.changed, after.left_out) == (True, []), "a snapshot that is not announced is not transferred"
    assert after.commit != before.commit
    assert not snapshot(worktree.path, seen).changed


def test_commits_left_by_a_turn_that_a_crash_interrupted_are_found(worktree: Worktree) -> None:
    made = on_a_new_branch(worktree.path)
    snapshot(worktree.path)  # the first one of the next process
    assert kept(worktree.path) == {made}


def test_what_other_refs_have_is_not_set_aside(worktree: Worktree) -> None:
    seen = RefMemory(owns_repository=True)
    snapshot(worktree.path, seen)
    made = on_a_new_branch(worktree.path)
    run_git(worktree.path, "merge", "--quiet", "x")
    run_git(worktree.path, "switch", "--quiet", "main~0", "--detach")
    run_git(worktree.path, "switch", "--quiet", worktree.branch)
    snapshot(worktree.path, seen)
    assert kept(worktree.path) == set()
    assert run_git(worktree.path, "rev-parse", "HEAD") == made


def test_branches_of_a_shared_repository_outlive_the_worktree(worktree: Worktree) -> None:
    seen = RefMemory(owns_repository=False)
    snapshot(worktree.path, seen)
    on_a_new_branch(worktree.path)
    snapshot(worktree.path, seen)
    assert kept(worktree.path) == set()
    detached = on_no_branch(worktree.path)
    snapshot(worktree.path, seen)
    assert kept(worktree.path) == {detached}


def test_orphan_branch_without_commits_loses_nothing(worktree: Worktree) -> None:
    seen = RefMemory(owns_repository=True)
    snapshot(worktree.path, seen)
    made = on_a_new_branch(worktree.path)
    run_git(worktree.path, "switch", "--quiet", "--orphan", "empty")
    taken = snapshot(worktree.path, seen)
    assert made in kept(worktree.path)
    assert taken.left_out == []


def test_number_and_size_are_limited_and_what_is_left_out_is_named(
    worktree: Worktree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(left_commits, "MAX_KEPT_AT_ONCE", 2)
    for number in range(4):
        run_git(worktree.path, "switch", "--quiet", "-c", f"x{number}", worktree.branch)
        commit(worktree.path, "work", f"{number}\n")
    run_git(worktree.path, "switch", "--quiet", worktree.branch)
    taken = snapshot(worktree.path)
    assert len(kept(worktree.path)) == 2
    assert {path.split(" on ")[1] for path in taken.left_out} == {"x0", "x1"}

    monkeypatch.setattr(left_commits, "MAX_KEPT_BYTES", 0)
    monkeypatch.setattr(left_commits, "MAX_KEPT_AT_ONCE", 20)
    taken = snapshot(worktree.path)
    assert any("larger than 0 MiB" in why for why in taken.left_out_reasons)


def test_newest_of_too_many_changed_branches_is_set_aside(
    worktree: Worktree, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(left_commits, "MAX_KEPT_AT_ONCE", 1)
    seen = RefMemory(owns_repository=True)
    snapshot(worktree.path, seen)
    tree = run_git(worktree.path, "rev-parse", "HEAD^{tree}")
    made = tmp_path / "commit"
    for name, time in (("older", 2_000_000_001), ("newest", 2_000_000_002), ("oldest", 2_000_000_000)):
        writer = f"Test <test@example.org> {time} +0000"
        made.write_text(f"tree {tree}\nauthor {writer}\ncommitter {writer}\n\n{name}\n")
        run_git(worktree.path, "branch", name, run_git(worktree.path, "hash-object", "-wt", "commit", str(made)))
    taken = snapshot(worktree.path, seen)
    assert kept(worktree.path) == {run_git(worktree.path, "rev-parse", "newest")}
    assert {path.split(" on ")[1] for path in taken.left_out} == {"refs/heads/older", "refs/heads/oldest"}


def test_failure_to_set_a_commit_aside_is_made_up_for_by_the_next_snapshot(worktree: Worktree) -> None:
    seen = RefMemory(owns_repository=True)
    snapshot(worktree.path, seen)
    made = behind_a_branch_that_was_never_checked_out(worktree.path)
    repository = Path(run_git(worktree.path, "rev-parse", "--path-format=absolute", "--git-common-dir"))
    blocker = repository / KEPT.rstrip("/")  # a file where git needs a directory: as on a full disk, it creates no ref
    blocker.parent.mkdir(parents=True)
    blocker.write_text("")
    failed = snapshot(worktree.path, seen)
    assert failed.left_out == ["commits on other branches"]
    blocker.unlink()
    assert snapshot(worktree.path, seen).left_out == []
    assert kept(worktree.path) == {made}


@pytest.mark.parametrize(
    "line",
    [
        "0" * 40 + " " + "1" * 40 + " A <a@b> 1 +0000\tcheckout: moving from x to y",
        "--upload-pack=/tmp/evil " + "1" * 40 + " A <a@b> 1 +0000\tcheckout: moving from x to y",
        "garbage \udcff",
    ],
)
def test_hostile_reflog_costs_nothing(worktree: Worktree, line: str) -> None:
    reflog = Path(run_git(worktree.path, "rev-parse", "--git-path", "logs/HEAD"))
    path = reflog if reflog.is_absolute() else worktree.path / reflog
    path.write_bytes(line.encode("utf-8", "surrogateescape") + b"\n")
    (worktree.path / "new").write_text("x\n")
    taken = snapshot(worktree.path)
    assert (taken.changed, kept(worktree.path), taken.left_out) == (True, set(), [])


def test_rebuilt_worktree_says_where_left_commits_are(repository: Path, worktree: Worktree) -> None:
    made = on_no_branch(worktree.path)
    snapshot(worktree.path, RefMemory(owns_repository=False))
    shutil.rmtree(worktree.path)
    run_git(repository, "worktree", "prune")
    run_git(repository, "gc", "--quiet", "--prune=now")
    note = worktrees.make_worktree(repository, "main", worktree, existed=True)
    assert f"One commit that is not on the branch is kept under {KEPT}." in note
    assert run_git(worktree.path, "cat-file", "-t", made) == "commit"

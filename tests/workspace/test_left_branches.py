"""An agent may leave the branch that its session was given; a lost directory returns where the agent was."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from executors_app.agentctl.workspace.workspace import Workspace
from executors_app.machine.git import recovery_snapshots, workspace_root, worktrees
from executors_app.machine.git.recovery_snapshots import KEPT_PREFIX
from executors_app.machine.git.worktrees import Worktree
from executors_app.repositories import recovery_refs
from executors_app.wire.errors import NotKept, RepositoryUnusable
from executors_app.wire.executions import WorkspaceState
from tests.executors.repositories import commit, run_git
from tests.workspace.trees import REF, SESSION, snapshot_tree

Leave = Callable[[Path], str]
"""Leaves the session's branch in a worktree with a commit, and returns the branch that HEAD names; empty: none."""


def _rename(root: Path) -> str:
    run_git(root, "branch", "-m", "feature/x")
    commit(root, "work", "x\n")
    return "feature/x"


def _switch(root: Path) -> str:
    run_git(root, "switch", "--quiet", "-c", "feature/y")
    commit(root, "work", "x\n")
    return "feature/y"


def _switch_beside_a_tag(root: Path) -> str:
    run_git(root, "tag", "feature/z")
    run_git(root, "switch", "--quiet", "-c", "feature/z")
    commit(root, "work", "x\n")
    return "feature/z"


def _detach(root: Path) -> str:
    run_git(root, "checkout", "--quiet", "--detach")
    commit(root, "work", "x\n")
    return ""


def _stop_in_a_rebase(root: Path) -> str:
    run_git(root, "checkout", "--quiet", "-b", "other", "HEAD")
    commit(root, "README", "theirs\n")
    run_git(root, "switch", "--quiet", "-c", "mine", "HEAD~1")
    commit(root, "README", "ours\n")
    with pytest.raises(Exception, match="rebase"):
        run_git(root, "rebase", "other")
    run_git(root, "checkout", "--force", "--quiet", "HEAD", "--", ".")
    return ""


def _delete_the_first_branch(root: Path) -> str:
    own = run_git(root, "branch", "--show-current")
    branch = _switch(root)
    run_git(root, "branch", "-D", own)
    return branch


LEAVES = pytest.mark.parametrize(
    "leave", [_rename, _switch, _switch_beside_a_tag, _detach, _stop_in_a_rebase, _delete_the_first_branch]
)


def lose(repository: Path, worktree: Worktree, *, prune: bool) -> None:
    """Delete the directory, and with ``prune`` everything that git knows only about it."""
    shutil.rmtree(worktree.path)
    if prune:
        run_git(repository, "worktree", "prune")
        run_git(repository, "gc", "--quiet", "--prune=now")


def state(repository: Path, worktree: Worktree) -> WorkspaceState:
    return worktrees.worktree_state(worktree, partial(worktrees.OwnedRepository.open, repository))[0]


@LEAVES
@pytest.mark.parametrize("prune", [False, True])
def test_lost_directory_returns_on_the_agents_branch(
    repository: Path, worktree: Worktree, leave: Leave, prune: bool
) -> None:
    branch = leave(worktree.path)
    head = run_git(worktree.path, "rev-parse", "HEAD")
    (worktree.path / "uncommitted").write_text("new\n")
    snapshot_tree(worktree.path)
    lose(repository, worktree, prune=prune)

    assert state(repository, worktree) is WorkspaceState.REBUILDABLE
    worktrees.make_worktree(repository, "main", worktree, existed=True)

    assert run_git(worktree.path, "rev-parse", "HEAD") == head
    assert run_git(worktree.path, "branch", "--show-current") == branch
    assert (worktree.path / "uncommitted").read_text() == "new\n"


@pytest.mark.parametrize("prune", [False, True])
def test_orphan_branch_returns_with_its_files(repository: Path, worktree: Worktree, prune: bool) -> None:
    run_git(worktree.path, "switch", "--quiet", "--orphan", "empty")
    (worktree.path / "first").write_text("first\n")
    run_git(worktree.path, "add", "first")
    snapshot_tree(worktree.path)
    lose(repository, worktree, prune=prune)
    worktrees.make_worktree(repository, "main", worktree, existed=True)
    assert run_git(worktree.path, "branch", "--show-current") == "empty"
    assert run_git(worktree.path, "status", "--porcelain") == "A  first"
    assert run_git(repository, "for-each-ref", "refs/heads/empty") == ""


def test_branch_renamed_after_the_last_snapshot_is_found_in_its_reflog(repository: Path, worktree: Worktree) -> None:
    snapshot_tree(worktree.path)
    run_git(worktree.path, "branch", "-m", "feature/x")
    head = commit(worktree.path, "work", "x\n")
    lose(repository, worktree, prune=True)
    worktrees.make_worktree(repository, "main", worktree, existed=True)
    assert run_git(worktree.path, "branch", "--show-current") == "feature/x"
    assert run_git(worktree.path, "rev-parse", "HEAD") == head


def test_deleted_branch_returns_from_the_snapshot_and_is_reported(repository: Path, worktree: Worktree) -> None:
    head = commit(worktree.path, "work", "x\n")
    snapshot_tree(worktree.path)
    lose(repository, worktree, prune=True)
    run_git(repository, "branch", "-D", worktree.branch)
    note = worktrees.make_worktree(repository, "main", worktree, existed=True)
    assert run_git(worktree.path, "rev-parse", "HEAD") == head
    assert run_git(worktree.path, "branch", "--show-current") == worktree.branch
    assert "may have been deleted or renamed" in note
    assert head[:12] in note


def test_deleted_branch_of_the_agent_is_not_made_again(repository: Path, worktree: Worktree) -> None:
    _switch(worktree.path)
    head = run_git(worktree.path, "rev-parse", "HEAD")
    snapshot_tree(worktree.path)
    lose(repository, worktree, prune=True)
    run_git(repository, "branch", "-D", "feature/y")
    note = worktrees.make_worktree(repository, "main", worktree, existed=True)
    assert run_git(worktree.path, "rev-parse", "HEAD") == head
    assert run_git(repository, "for-each-ref", "refs/heads/feature") == ""
    assert "feature/y" in note


def test_base_that_moved_on_is_not_checked_out_for_the_session(repository: Path, worktree: Worktree) -> None:
    run_git(repository, "switch", "--quiet", "-c", "elsewhere")
    run_git(worktree.path, "switch", "--quiet", "main")
    head = run_git(worktree.path, "rev-parse", "HEAD")
    snapshot_tree(worktree.path)
    lose(repository, worktree, prune=True)
    run_git(repository, "update-ref", "refs/heads/main", commit(repository, "later", "x\n"))
    note = worktrees.make_worktree(repository, "main", worktree, existed=True)
    assert run_git(worktree.path, "rev-parse", "HEAD") == head
    assert run_git(worktree.path, "branch", "--show-current") == ""
    assert "main has moved" in note


def test_moved_worktree_is_named_and_not_replaced(repository: Path, worktree: Worktree) -> None:
    moved = worktree.path.with_name("moved")
    run_git(repository, "worktree", "move", str(worktree.path), str(moved))
    assert state(repository, worktree) is WorkspaceState.REBUILDABLE
    with pytest.raises(RepositoryUnusable, match=f"was moved to {moved}") as caught:
        worktrees.make_worktree(repository, "main", worktree, existed=True)
    assert caught.value.permanent
    assert not worktree.path.exists()


def test_worktree_that_was_moved_and_then_deleted_returns(repository: Path, worktree: Worktree) -> None:
    (worktree.path / "staged").write_text("staged\n")
    run_git(worktree.path, "add", "staged")
    moved = worktree.path.with_name("moved")
    run_git(repository, "worktree", "move", str(worktree.path), str(moved))
    shutil.rmtree(moved)
    worktrees.make_worktree(repository, "main", worktree, existed=True)
    assert run_git(worktree.path, "status", "--porcelain") == "A  staged"
    assert str(worktree.path) in run_git(repository, "worktree", "list")


def test_repository_in_place_of_the_worktree_is_kept(repository: Path, worktree: Worktree) -> None:
    (worktree.path / ".git").unlink()
    run_git(worktree.path, "init", "--quiet")
    with pytest.raises(RepositoryUnusable, match="a repository of its own") as caught:
        worktrees.make_worktree(repository, "main", worktree, existed=True)
    assert caught.value.permanent
    assert (worktree.path / ".git" / "HEAD").is_file()


def test_branch_change_alone_makes_a_new_snapshot(worktree: Worktree) -> None:
    snapshot_tree(worktree.path)
    run_git(worktree.path, "switch", "--quiet", "-c", "feature/y")
    taken = snapshot_tree(worktree.path)
    assert taken.changed
    assert "Kandev-Ref: refs/heads/feature/y" in run_git(worktree.path, "log", "-1", "--format=%B", REF)


def test_commits_of_a_left_branch_are_set_aside(worktree: Worktree) -> None:
    run_git(worktree.path, "switch", "--quiet", "-c", "first")
    head = commit(worktree.path, "work", "x\n")
    snapshot_tree(worktree.path)
    run_git(worktree.path, "switch", "--quiet", worktree.branch)
    snapshot_tree(worktree.path)
    kept = run_git(worktree.path, "for-each-ref", "--format=%(objectname)", f"{KEPT_PREFIX}{SESSION}")
    run_git(worktree.path, "merge-base", "--is-ancestor", head, kept)


@pytest.mark.parametrize(
    ("text", "ref"),
    [
        ("refs/heads/feature/y", "refs/heads/feature/y"),
        ("none", ""),
        ("refs/tags/v1", None),
        ("refs/heads/../../x", None),
        ("--upload-pack=x", None),
        ("refs/heads/x.lock", None),
    ],
)
def test_only_branches_are_read_from_a_snapshots_message(text: str, ref: str | None) -> None:
    body = f"x\n\nKandev-Session: s\nKandev-Head: abc\nKandev-Index: def\nKandev-Ref: {text}\n"
    found = recovery_snapshots.find_recovery(lambda *_: body, "abc")
    assert found is not None
    assert found.ref == ref


def test_status_names_branch_and_rebase(worktree: Worktree) -> None:
    workspace = Workspace(worktree.path, {})
    assert workspace.report()["branch"] == worktree.branch
    _stop_in_a_rebase(worktree.path)
    report = workspace.report()
    assert (report["branch"], report["operation"]) == (None, "rebase")


def _pack(repository: Path, tmp_path: Path, worktree: Worktree) -> dict[str, str]:
    with (tmp_path / "bundle").open("wb") as into:
        refs: dict[str, str] = workspace_root.pack_work(repository, worktree, [], into)["refs"]
    return refs


@pytest.mark.parametrize("leave", [_rename, _switch, _delete_the_first_branch])
def test_bundle_follows_the_branch_that_the_agent_went_on_with(
    repository: Path, worktree: Worktree, tmp_path: Path, leave: Leave
) -> None:
    leave(worktree.path)
    head = run_git(worktree.path, "rev-parse", "HEAD")
    snapshot_tree(worktree.path)
    refs = _pack(repository, tmp_path, worktree)
    assert refs[f"refs/heads/{worktree.branch}"] == head
    assert set(refs) == {f"refs/heads/{worktree.branch}", REF}


def test_bundle_does_not_follow_the_base_or_another_sessions_branch(
    repository: Path, worktree: Worktree, tmp_path: Path
) -> None:
    own = run_git(worktree.path, "rev-parse", "HEAD")
    run_git(repository, "config", "kandev.base", "trunk")
    for branch in ("trunk", "kandev/ffffffffffff"):
        run_git(worktree.path, "switch", "--quiet", "-c", branch)
        commit(worktree.path, "work", f"{branch}\n")
        snapshot_tree(worktree.path)
        assert _pack(repository, tmp_path, worktree)[f"refs/heads/{worktree.branch}"] == own


@LEAVES
def test_saved_work_is_shown_where_the_agent_was(repository: Path, worktree: Worktree, leave: Leave) -> None:
    branch = leave(worktree.path)
    head = run_git(worktree.path, "rev-parse", "HEAD")
    (worktree.path / "uncommitted").write_text("new\n")
    snapshot_tree(worktree.path)
    lose(repository, worktree, prune=True)
    saved = recovery_refs.find_saved_work(repository, SESSION, worktree.branch)
    assert (saved.branch, saved.head) == (branch, head)
    assert "uncommitted" in recovery_refs.saved_status(saved)["untracked"]


def test_saved_work_names_no_commit_that_the_snapshot_does_not_contain(repository: Path, worktree: Worktree) -> None:
    snapshot_tree(worktree.path)
    run_git(repository, "branch", "secret")
    run_git(repository, "switch", "--quiet", "secret")
    secret = commit(repository, "secret", "x\n")
    index = run_git(repository, "rev-parse", f"{REF}^2")
    tree = run_git(repository, "rev-parse", f"{REF}^{{tree}}")
    message = f"x\n\nKandev-Session: {SESSION}\nKandev-Head: {secret}\nKandev-Index: {index}\nKandev-Ref: none\n"
    forged = run_git(repository, "commit-tree", tree, "-p", f"{REF}^1", "-p", index, "-m", message)
    run_git(repository, "update-ref", REF, forged)
    assert recovery_refs.find_saved_work(repository, SESSION, worktree.branch).head != secret


def test_nothing_saved_is_not_called_deleted(repository: Path, worktree: Worktree) -> None:
    lose(repository, worktree, prune=True)
    run_git(repository, "branch", "-D", worktree.branch)
    with pytest.raises(NotKept, match="was found"):
        recovery_refs.find_saved_work(repository, SESSION, worktree.branch)


def test_repository_of_the_workspace_alone_gets_the_agents_branch_back(repository: Path, worktree: Worktree) -> None:
    _switch(worktree.path)
    head = run_git(worktree.path, "rev-parse", "HEAD")
    snapshot_tree(worktree.path)
    lose(repository, worktree, prune=True)
    run_git(repository, "branch", "-D", "feature/y")
    worktrees.make_worktree(repository, "", worktree, existed=True, owns_repository=True)
    assert run_git(worktree.path, "branch", "--show-current") == "feature/y"
    assert run_git(worktree.path, "rev-parse", "HEAD") == head

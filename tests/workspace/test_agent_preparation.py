"""Whatever an agent did to its files, index and HEAD: a lost directory returns with every file, where the agent was."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from executors_app.agentctl.workspace.agent_preparation import prepare_workspace
from executors_app.agentctl.workspace.changes import git_status
from executors_app.machine.git import worktrees
from executors_app.machine.git.worktrees import Worktree
from tests.executors.repositories import commit, make_repository, run_git
from tests.workspace.trees import REF, git_of, snapshot_tree, state_of

Change = Callable[[Path], None]
"""Changes a working tree that has the committed files README, folder/inside and other/file."""


def _file_becomes_directory(root: Path) -> None:
    (root / "README").unlink()
    (root / "README").mkdir()
    (root / "README" / "file").write_text("new\n")


def _directory_becomes_file(root: Path) -> None:
    shutil.rmtree(root / "folder")
    (root / "folder").write_text("new\n")


def _directory_becomes_link(root: Path) -> None:
    shutil.rmtree(root / "folder")
    (root / "folder").symlink_to("other")


def _announced_file(root: Path) -> None:
    (root / "later").write_text("later\n")
    run_git(root, "add", "--intent-to-add", "later")


def _conflict(root: Path, *operation: str) -> None:
    own = run_git(root, "branch", "--show-current")
    run_git(root, "switch", "--quiet", "-c", "side")
    commit(root, "README", "theirs\n")
    run_git(root, "switch", "--quiet", own)
    commit(root, "README", "ours\n")
    with pytest.raises(Exception, match=operation[0]):
        run_git(root, *operation)
    (root / "note").write_text("note\n")


def _merge(root: Path) -> None:
    _conflict(root, "merge", "side")


def _merge_of_a_deletion(root: Path) -> None:
    own = run_git(root, "branch", "--show-current")
    run_git(root, "switch", "--quiet", "-c", "side")
    run_git(root, "rm", "--quiet", "README")
    run_git(root, "commit", "--quiet", "-m", "Delete README")
    run_git(root, "switch", "--quiet", own)
    commit(root, "README", "ours\n")
    with pytest.raises(Exception, match="merge"):
        run_git(root, "merge", "side")


def _merge_that_was_resolved_but_not_staged(root: Path) -> None:
    _merge(root)
    (root / "README").write_text("ours\n")


def _cherry_pick(root: Path) -> None:
    _conflict(root, "cherry-pick", "side")


def _rebase(root: Path) -> None:
    _conflict(root, "rebase", "side")


def _am(root: Path) -> None:
    commit(root, "README", "theirs\n")
    run_git(root, "format-patch", "--quiet", "-1", "--output-directory", ".git-patches")
    run_git(root, "reset", "--quiet", "--hard", "HEAD~1")
    commit(root, "README", "ours\n")
    with pytest.raises(Exception, match="am"):
        run_git(root, "am", "--3way", ".git-patches/0001-Write-README.patch")


def _bisect(root: Path) -> None:
    for number in range(3):
        commit(root, f"n{number}", "x\n")
    run_git(root, "bisect", "start", "HEAD", "HEAD~3")
    (root / "note").write_text("note\n")


def _ref_of_the_worktree(root: Path) -> None:
    run_git(root, "update-ref", "refs/worktree/mark", "HEAD")
    commit(root, "n", "x\n")
    (root / "note").write_text("note\n")


def _sparse(root: Path, *options: str) -> None:
    run_git(root, "sparse-checkout", "set", *options, "folder")
    (root / "other").mkdir(exist_ok=True)
    (root / "other" / "new").write_text("outside\n")
    (root / "other" / "file").write_text("rewritten\n")
    (root / "folder" / "new").write_text("inside\n")


def _sparse_cone(root: Path) -> None:
    _sparse(root, "--cone", "--no-sparse-index")


def _sparse_index(root: Path) -> None:
    _sparse(root, "--cone", "--sparse-index")


def _assumed_unchanged(root: Path) -> None:
    run_git(root, "update-index", "--assume-unchanged", "README", "folder/inside")
    (root / "README").write_text("changed\n")
    (root / "folder" / "inside").unlink()


def _names_that_differ_by_case(root: Path) -> None:
    run_git(root, "config", "core.ignoreCase", "true")
    (root / "readme").write_text("another file\n")
    (root / "FOLDER").mkdir()
    (root / "FOLDER" / "inside").write_text("another file\n")


def _on_branch_named(name: str) -> Change:
    def change(root: Path) -> None:
        commit(root, "work", "x\n")
        run_git(root, "update-ref", f"refs/heads/{name}", "HEAD")
        run_git(root, "symbolic-ref", "HEAD", f"refs/heads/{name}")
        (root / "note").write_text("note\n")

    return change


CHANGES = {
    "file becomes directory": _file_becomes_directory,
    "directory becomes file": _directory_becomes_file,
    "directory becomes link": _directory_becomes_link,
    "announced file": _announced_file,
    "merge": _merge,
    "merge of a deletion": _merge_of_a_deletion,
    "merge that was resolved but not staged": _merge_that_was_resolved_but_not_staged,
    "cherry-pick": _cherry_pick,
    "rebase": _rebase,
    "am": _am,
    "bisect": _bisect,
    "ref of the worktree": _ref_of_the_worktree,
    "sparse": _sparse_cone,
    "sparse index": _sparse_index,
    "assumed unchanged": _assumed_unchanged,
    "names that differ by case": _names_that_differ_by_case,
    "branch -x": _on_branch_named("-x"),
    "branch --detach": _on_branch_named("--detach"),
    "branch HEAD": _on_branch_named("HEAD"),
    "branch that is not UTF-8": _on_branch_named(os.fsdecode(b"caf\xe9")),
    "branch with an umlaut": _on_branch_named("für/ä"),
    "branch refs/heads/x": _on_branch_named("refs/heads/x"),
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    made = make_repository(tmp_path / "repository")
    for name in ("folder/inside", "other/file"):
        (made / name).parent.mkdir()
        commit(made, name, "before\n")
    return made


def _position(root: Path) -> tuple[str, str]:
    return run_git(root, "rev-parse", "HEAD"), run_git(root, "rev-parse", "--symbolic-full-name", "HEAD")


@pytest.mark.parametrize("prune", [False, True])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_lost_directory_returns_with_every_file(
    repository: Path, worktree: Worktree, change: Change, prune: bool
) -> None:
    change(worktree.path)
    _, files = state_of(worktree.path)
    position = _position(worktree.path)
    assert snapshot_tree(worktree.path).left_out == []
    shutil.rmtree(worktree.path)
    if prune:
        run_git(repository, "worktree", "prune")

    worktrees.make_worktree(repository, "main", worktree, existed=True)

    assert state_of(worktree.path)[1] == files
    assert _position(worktree.path) == position


@pytest.mark.parametrize("change", [_merge, _cherry_pick, _rebase, _bisect, _am])
def test_operation_that_git_has_forgotten_is_named(repository: Path, worktree: Worktree, change: Change) -> None:
    change(worktree.path)
    snapshot_tree(worktree.path)
    shutil.rmtree(worktree.path)
    run_git(repository, "worktree", "prune")
    note = worktrees.make_worktree(repository, "main", worktree, existed=True)
    assert f"git {change.__name__.strip('_').replace('_', '-')} was in progress" in note


def test_conflict_that_began_after_the_snapshot_keeps_its_marks(repository: Path, worktree: Worktree) -> None:
    run_git(worktree.path, "switch", "--quiet", "-c", "side")
    commit(worktree.path, "README", "theirs\n")
    run_git(worktree.path, "switch", "--quiet", worktree.branch)
    commit(worktree.path, "README", "ours\n")
    snapshot_tree(worktree.path)
    with pytest.raises(Exception, match="merge"):
        run_git(worktree.path, "merge", "side")
    shutil.rmtree(worktree.path)

    worktrees.make_worktree(repository, "main", worktree, existed=True)

    assert "theirs" in (worktree.path / "README").read_text()
    assert run_git(worktree.path, "status", "--porcelain") == "UU README"


def test_deletion_that_conflicts_after_the_snapshot_leaves_the_file(repository: Path, worktree: Worktree) -> None:
    snapshot_tree(worktree.path)
    head = run_git(worktree.path, "rev-parse", "HEAD")
    _merge_of_a_deletion(worktree.path)
    run_git(worktree.path, "update-ref", "--no-deref", "HEAD", head)
    shutil.rmtree(worktree.path)

    worktrees.make_worktree(repository, "main", worktree, existed=True)

    assert (worktree.path / "README").exists()


def test_panel_knows_branch_and_commit_during_a_bisect(worktree: Worktree) -> None:
    _ref_of_the_worktree(worktree.path)
    status = git_status(git_of(worktree.path))
    assert status["branch"] == worktree.branch
    assert status["head"] == run_git(worktree.path, "rev-parse", "HEAD")


@pytest.mark.parametrize("sparse", [_sparse_cone, _sparse_index])
def test_snapshot_of_a_sparse_repository_is_restored_outside_too(
    repository: Path, worktree: Worktree, sparse: Change
) -> None:
    run_git(repository, "sparse-checkout", "set", "folder")
    sparse(worktree.path)
    snapshot_tree(worktree.path)
    shutil.rmtree(worktree.path)
    run_git(repository, "worktree", "prune")
    worktrees.make_worktree(repository, "main", worktree, existed=True)
    assert (worktree.path / "other" / "new").read_text() == "outside\n"
    assert (worktree.path / "other" / "file").read_text() == "rewritten\n"


@pytest.mark.parametrize("name", ["refs/elsewhere/x", "refs/tags/x"])
def test_head_that_names_no_branch_is_called_detached(worktree: Worktree, name: str) -> None:
    run_git(worktree.path, "update-ref", name, "HEAD")
    run_git(worktree.path, "symbolic-ref", "HEAD", name)
    assert snapshot_tree(worktree.path).branch == ""


def test_submodule_from_the_teams_copy_is_not_called_left_out(repository: Path, tmp_path: Path) -> None:
    library = make_repository(tmp_path / "library")
    add = ("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(library), "sub")
    run_git(repository, *add)
    commit(repository / "sub", "README", "only in the copy\n")
    run_git(repository, "commit", "--quiet", "--all", "-m", "with sub")
    made = worktrees.session_worktree(tmp_path / "data", "22345678-90ab-4def-9234-567890abcdef")
    worktrees.make_worktree(repository, "", made, existed=False)
    assert prepare_workspace(git_of(made.path), "") == []
    assert (made.path / "sub" / "README").read_text() == "only in the copy\n"
    assert snapshot_tree(made.path).left_out == []


def test_snapshots_are_shared_although_the_worktree_has_refs(repository: Path, worktree: Worktree) -> None:
    _ref_of_the_worktree(worktree.path)
    taken = snapshot_tree(worktree.path)
    assert run_git(repository, "rev-parse", REF) == taken.commit

"""Submodules that were removed, replaced, renamed or are in conflict: a snapshot has them, or names them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from executors_app.agentctl.workspace.agent_preparation import prepare_workspace
from executors_app.agentctl.workspace.working_tree import WorkingTree
from executors_app.machine.git import worktrees
from executors_app.machine.git.workspace_git import GitError
from executors_app.machine.git.worktrees import Worktree
from tests.executors.repositories import commit, make_repository, run_git
from tests.workspace.trees import LOCAL, add_submodule, git_of, snapshot_tree, start_session, state_of

Change = Callable[[Path], None]
"""Changes a workspace with the submodule ``sub``, which has the committed files f.txt and g.txt."""


def _directory_removed(root: Path) -> None:
    shutil.rmtree(root / "sub")


def _removed(root: Path) -> None:
    run_git(root, "rm", "--quiet", "sub")


def _replaced_by_a_file(root: Path) -> None:
    shutil.rmtree(root / "sub")
    (root / "sub").write_text("precious\n")


def _replaced_by_a_staged_file(root: Path) -> None:
    _removed(root)
    (root / "sub").write_text("precious\n")
    run_git(root, "add", "sub")


def _replaced_by_a_staged_directory(root: Path) -> None:
    _removed(root)
    (root / "sub").mkdir()
    (root / "sub" / "new").write_text("precious\n")
    run_git(root, "add", "sub")
    (root / "sub" / "other").write_text("precious\n")


def _staged_commit(root: Path) -> None:
    commit(root / "sub", "f.txt", "staged\n")
    run_git(root, "add", "sub")
    commit(root / "sub", "f.txt", "later\n")
    (root / "sub" / "g.txt").write_text("precious\n")


def _renamed(root: Path) -> None:
    run_git(root, "mv", "sub", "moved")
    (root / "moved" / "f.txt").write_text("precious\n")


def _renamed_with_work(root: Path) -> None:
    (root / "sub" / "f.txt").write_text("precious\n")
    run_git(root, "mv", "sub", "moved")
    commit(root / "moved", "g.txt", "precious\n")


def _file_replaced_by_a_repository(root: Path) -> None:
    (root / "README").unlink()
    run_git(root, "clone", "--quiet", str(root / "sub"), "README")
    (root / "README" / "f.txt").write_text("precious\n")


def _file_replaced_by_a_staged_one(root: Path) -> None:
    _file_replaced_by_a_repository(root)
    run_git(root, "add", "README")
    _removed(root)


CHANGES: dict[str, Change] = {
    "directory removed": _directory_removed,
    "removed": _removed,
    "replaced by a file": _replaced_by_a_file,
    "replaced by a staged file": _replaced_by_a_staged_file,
    "replaced by a staged directory": _replaced_by_a_staged_directory,
    "staged commit": _staged_commit,
    "in place of a file": _file_replaced_by_a_staged_one,
    "renamed": _renamed,
    "renamed with work": _renamed_with_work,
}


def _restore(repository: Path, place: Worktree, lost: str) -> str:
    shutil.rmtree(place.path)
    if lost != "directory":
        run_git(repository, "worktree", "prune")
    if lost == "copy":
        shutil.rmtree(repository / ".git" / "modules")
    return worktrees.make_worktree(repository, "", place, existed=True)


@pytest.mark.parametrize("lost", ["directory", "record", "copy"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_changed_submodule_returns(repository: Path, place: Worktree, change: Change, lost: str) -> None:
    change(place.path)
    (place.path / "beside").write_text("kept\n")
    before = state_of(place.path)
    taken = snapshot_tree(place.path)
    assert taken.left_out == []
    assert not snapshot_tree(place.path).changed
    assert "not restored: " not in _restore(repository, place, lost)
    assert state_of(place.path) == before


def test_nested_submodule_that_was_renamed_or_removed_returns(repository: Path, library: Path, tmp_path: Path) -> None:
    outer = make_repository(tmp_path / "outer", "o.txt", "outer\n")
    for name in ("removed", "renamed", "staged", "file"):
        add_submodule(outer, library, name)
    add_submodule(repository, outer)
    place = start_session(repository, tmp_path)
    run_git(place.path / "sub", *LOCAL, "submodule", "--quiet", "update", "--init")
    sub = place.path / "sub"
    run_git(sub, "rm", "--quiet", "removed")
    run_git(sub, "mv", "renamed", "new")
    (sub / "new" / "f.txt").write_text("precious\n")
    commit(sub / "staged", "f.txt", "precious\n")
    run_git(sub, "add", "staged")
    shutil.rmtree(sub / "file")
    (sub / "file").write_text("precious\n")
    before = [state_of(path) for path in (place.path, sub, sub / "new", sub / "staged")]
    assert snapshot_tree(place.path).left_out == []
    assert "not restored: " not in _restore(repository, place, "record")
    assert [state_of(path) for path in (place.path, sub, sub / "new", sub / "staged")] == before


def _only_in_the_index_removed(root: Path) -> None:
    run_git(root, "rm", "--quiet", "--cached", "sub")
    (root / "sub" / "f.txt").write_text("precious\n")


def _replaced_by_a_directory(root: Path) -> None:
    shutil.rmtree(root / "sub")
    (root / "sub").mkdir()
    (root / "sub" / "new").write_text("precious\n")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (_file_replaced_by_a_repository, "README/"),
        (_only_in_the_index_removed, "sub/"),
        (_replaced_by_a_directory, "sub/"),
    ],
)
def test_repository_that_cannot_be_saved_is_named(place: Worktree, change: Change, named: str) -> None:
    change(place.path)
    (place.path / "beside").write_text("kept\n")
    taken = snapshot_tree(place.path)
    assert run_git(place.path, "show", f"{taken.commit}:beside") == "kept"
    assert taken.left_out == [named]


def test_submodule_in_conflict_is_saved(repository: Path, place: Worktree) -> None:
    root = place.path
    base = run_git(root / "sub", "rev-parse", "HEAD")
    start = run_git(root, "symbolic-ref", "--short", "HEAD")
    heads = []
    for branch in ("one", "two"):
        run_git(root, "switch", "--quiet", "-c", branch, start)
        run_git(root / "sub", "checkout", "--quiet", base)
        heads.append(commit(root / "sub", "f.txt", f"{branch}\n"))
        run_git(root, "commit", "--quiet", "--all", "-m", branch)
    with pytest.raises(Exception, match="merge"):
        run_git(root, "merge", "one")
    (root / "beside").write_text("kept\n")
    (root / "sub" / "g.txt").write_text("precious\n")
    taken = snapshot_tree(root)
    assert taken.left_out == []
    assert run_git(root, "show", f"{taken.commit}:beside") == "kept"
    assert run_git(root, "rev-parse", f"{taken.commit}:sub") == heads[1]


@pytest.mark.parametrize("failing", [["sub"], ["sub", "other"]])
def test_submodule_that_git_does_not_stage_is_named(
    library: Path, place: Worktree, monkeypatch: pytest.MonkeyPatch, failing: list[str]
) -> None:
    root = place.path
    add_submodule(root, library, "other")
    heads = {name: commit(root / name, "f.txt", "precious\n") for name in ("sub", "other")}
    (root / "beside").write_text("kept\n")
    run = WorkingTree.run

    def refuse(self: WorkingTree, *arguments: str, stdin: bytes = b"", **options: object) -> object:
        if arguments[0] == "update-index" and set(stdin.decode().split("\0")) & set(failing):
            raise GitError("git update-index failed: no", 128)
        return run(self, *arguments, stdin=stdin, **options)

    monkeypatch.setattr(WorkingTree, "run", refuse)
    taken = snapshot_tree(root)
    assert run_git(root, "show", f"{taken.commit}:beside") == "kept"
    assert taken.left_out == sorted(failing)
    assert all("git refuses it" in reason for reason in taken.left_out_reasons)
    for name in {"sub", "other"} - set(failing):
        assert run_git(root, "rev-parse", f"{taken.commit}:{name}") == heads[name]


def _remove_directory(sub: Path) -> None:
    shutil.rmtree(sub)


def _deinit(sub: Path) -> None:
    run_git(sub.parent, "submodule", "--quiet", "deinit", "--force", "sub")


@pytest.mark.parametrize("remove", [_remove_directory, _deinit])
def test_restart_does_not_undo_the_removal_of_a_submodule(place: Worktree, remove: Change) -> None:
    assert prepare_workspace(git_of(place.path), "") == []
    remove(place.path / "sub")
    before = state_of(place.path)

    prepare_workspace(git_of(place.path), "")

    assert not (place.path / "sub" / "f.txt").exists()
    assert state_of(place.path) == before


def test_clean_submodule_is_filled_again_after_a_loss(repository: Path, place: Worktree) -> None:
    (place.path / "beside").write_text("kept\n")
    snapshot_tree(place.path)
    shutil.rmtree(place.path)
    worktrees.make_worktree(repository, "", place, existed=True)

    assert prepare_workspace(git_of(place.path), "", rebuilt=True) == []

    assert (place.path / "sub" / "f.txt").exists()


def test_removed_submodule_stays_removed_after_a_loss(repository: Path, place: Worktree) -> None:
    shutil.rmtree(place.path / "sub")
    snapshot_tree(place.path)
    before = state_of(place.path)
    shutil.rmtree(place.path)
    worktrees.make_worktree(repository, "", place, existed=True)

    assert prepare_workspace(git_of(place.path), "", rebuilt=True) == []

    assert state_of(place.path) == before


@pytest.mark.parametrize("is_staged", [False, True])
def test_commits_of_a_removed_submodule_are_named(place: Worktree, is_staged: bool) -> None:
    for number in range(2):
        commit(place.path / "sub", "f.txt", f"precious {number}\n")
    shutil.rmtree(place.path / "sub")
    if is_staged:
        run_git(place.path, "rm", "--quiet", "--cached", "sub")

    taken = snapshot_tree(place.path)

    assert taken.left_out == ["modules/sub"]
    assert taken.left_out_reasons[0].startswith("2 commits of a removed submodule exist only in its repository")

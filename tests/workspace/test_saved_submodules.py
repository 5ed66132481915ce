"""Work inside submodules is part of a snapshot, and returns into them after the loss of the directory."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from executors_app.agentctl.workspace.agent_preparation import prepare_workspace
from executors_app.agentctl.workspace.working_tree import SnapshotLimits
from executors_app.machine.git import recovery_snapshots, worktrees
from executors_app.machine.git.saved_submodules import SubmoduleRestorer
from executors_app.machine.git.worktrees import Worktree
from tests.executors.repositories import commit, make_repository, run_git
from tests.workspace.trees import LOCAL, REF, add_submodule, git_of, snapshot_tree, start_session, state_of

Change = Callable[[Path], None]
"""Changes a submodule that has the committed files f.txt and g.txt."""


def _edit(sub: Path) -> None:
    (sub / "f.txt").write_text("precious\n")


def _everything(sub: Path) -> None:
    _edit(sub)
    (sub / "g.txt").unlink()
    (sub / "folder").mkdir()
    (sub / "folder" / "new").write_text("precious\n")
    (sub / "staged").write_text("first\n")
    run_git(sub, "add", "staged")
    (sub / "staged").write_text("second\n")


def _commit(sub: Path) -> None:
    commit(sub, "f.txt", "precious\n")


def _branch(sub: Path) -> None:
    run_git(sub, "switch", "--quiet", "-c", "work")
    commit(sub, "f.txt", "one\n")
    commit(sub, "new", "two\n")
    (sub / "g.txt").write_text("and more\n")


def _merge_commit(sub: Path) -> None:
    _branch(sub)
    run_git(sub, "stash", "--quiet")
    run_git(sub, "switch", "--quiet", "-c", "other", "HEAD~2")
    commit(sub, "beside", "x\n")
    run_git(sub, "merge", "--quiet", "--no-edit", "work")


def _left_commit(sub: Path) -> None:
    base = run_git(sub, "rev-parse", "HEAD")
    _commit(sub)
    run_git(sub, "checkout", "--quiet", base)


def _conflict(sub: Path) -> None:
    run_git(sub, "switch", "--quiet", "-c", "one")
    commit(sub, "f.txt", "one\n")
    run_git(sub, "switch", "--quiet", "-c", "two", "HEAD~1")
    commit(sub, "f.txt", "two\n")
    with pytest.raises(Exception, match="merge"):
        run_git(sub, "merge", "one")


def _own_git_directory(sub: Path) -> None:
    """Replace the repository by one inside the submodule, as ``git clone`` makes it."""
    source = run_git(sub, "rev-parse", "--absolute-git-dir")
    head = run_git(sub, "rev-parse", "HEAD")
    shutil.rmtree(sub)
    run_git(sub.parent, "clone", "--quiet", source, "sub")
    run_git(sub, "switch", "--quiet", "--detach", head)
    _everything(sub)


CHANGES: dict[str, Change] = {
    "edit": _edit,
    "everything": _everything,
    "commit": _commit,
    "branch": _branch,
    "merge commit": _merge_commit,
    "conflict": _conflict,
    "a git directory of its own": _own_git_directory,
}


def _position(sub: Path) -> tuple[str, ...]:
    return (
        run_git(sub, "rev-parse", "HEAD"),
        run_git(sub, "rev-parse", "--symbolic-full-name", "HEAD"),
        run_git(sub, "log", "-3", "--format=%H %an %s"),
    )


def _lose(repository: Path, place: Worktree, how: str) -> None:
    shutil.rmtree(place.path)
    if how != "directory":
        run_git(repository, "worktree", "prune")
    if how == "copy":
        shutil.rmtree(repository / ".git" / "modules")


@pytest.mark.parametrize("lost", ["directory", "record", "copy"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_work_inside_a_submodule_returns(repository: Path, place: Worktree, change: Change, lost: str) -> None:
    sub = place.path / "sub"
    change(sub)
    (place.path / "beside").write_text("kept\n")
    status, files = state_of(place.path)
    inner, position = state_of(sub)[0], _position(sub)
    taken = snapshot_tree(place.path)
    assert taken.dirty
    assert taken.left_out == []
    assert not snapshot_tree(place.path).changed
    _lose(repository, place, lost)

    note = worktrees.make_worktree(repository, "", place, existed=True)

    assert "not restored: " not in note
    assert state_of(place.path) == (status, files)
    if change is not _conflict or lost == "directory":
        assert state_of(sub)[0] == inner
    if lost == "copy" or (lost == "directory" and change is _own_git_directory):  # the history was only in there
        assert _position(sub)[:2] == position[:2]
    else:
        assert _position(sub) == position
    assert prepare_workspace(git_of(place.path), "") == []
    assert snapshot_tree(place.path).left_out == []
    run_git(sub, "fsck")


@pytest.mark.parametrize("change", [_left_commit, _merge_commit])
@pytest.mark.parametrize("lost", ["record", "copy"])
def test_commits_beside_the_head_of_a_submodule_return(
    repository: Path, place: Worktree, change: Change, lost: str
) -> None:
    sub = place.path / "sub"
    change(sub)
    ref = "HEAD@{1}" if change is _left_commit else "refs/stash"
    wanted = run_git(sub, "rev-parse", ref)
    assert snapshot_tree(place.path).left_out == []
    _lose(repository, place, lost)
    worktrees.make_worktree(repository, "", place, existed=True)
    assert wanted in run_git(sub, "for-each-ref", "--format=%(objectname)")
    assert run_git(sub, "cat-file", "-t", wanted) == "commit"


@pytest.mark.parametrize("lost", ["directory", "record"])
@pytest.mark.parametrize("change", [_edit, _everything, _commit])
def test_work_inside_a_nested_submodule_returns(
    repository: Path, library: Path, tmp_path: Path, change: Change, lost: str
) -> None:
    outer = make_repository(tmp_path / "outer", "o.txt", "outer\n")
    add_submodule(outer, library, "deep/er")
    add_submodule(repository, outer)
    place = start_session(repository, tmp_path)
    run_git(place.path / "sub", *LOCAL, "submodule", "--quiet", "update", "--init")
    nested = place.path / "sub" / "deep" / "er"
    change(nested)
    state, inner = state_of(place.path), state_of(nested)
    assert snapshot_tree(place.path).left_out == []
    _lose(repository, place, lost)
    note = worktrees.make_worktree(repository, "", place, existed=True)
    assert "not restored: " not in note
    assert state_of(place.path) == state
    assert state_of(nested) == inner


def test_clean_submodule_is_not_stored(place: Worktree) -> None:
    taken = snapshot_tree(place.path)
    assert not taken.dirty
    assert "Kandev-Submodules" not in run_git(place.path, "log", "-1", "--format=%B", REF)


def test_newer_commit_of_the_superproject_names_a_commit_of_the_submodule(repository: Path, place: Worktree) -> None:
    sub = place.path / "sub"
    _commit(sub)
    run_git(place.path, "commit", "--quiet", "--all", "-m", "newer sub")
    head = run_git(sub, "rev-parse", "HEAD")
    assert snapshot_tree(place.path).left_out == []
    _lose(repository, place, "copy")
    worktrees.make_worktree(repository, "", place, existed=True)
    assert run_git(sub, "rev-parse", "HEAD") == head
    assert run_git(place.path, "status", "--porcelain") == ""


def test_commit_of_a_submodule_after_the_last_snapshot_is_not_undone(repository: Path, place: Worktree) -> None:
    sub = place.path / "sub"
    _edit(sub)
    snapshot_tree(place.path)
    head = commit(sub, "later", "later\n")
    _lose(repository, place, "directory")
    note = worktrees.make_worktree(repository, "", place, existed=True)
    assert "new commits since the last snapshot" in note
    assert run_git(sub, "rev-parse", "HEAD") == head
    assert (sub / "later").exists()
    kept = run_git(sub, "for-each-ref", "--format=%(refname)", "refs/kandev/kept/")
    assert run_git(sub, "show", f"{kept}:f.txt") == "precious"


def test_snapshot_grows_only_by_what_has_changed(repository: Path, place: Worktree) -> None:
    _edit(place.path / "sub")
    first = snapshot_tree(place.path).commit
    (place.path / "sub" / "g.txt").write_text("another\n")
    second = snapshot_tree(place.path).commit
    new = run_git(repository, "rev-list", "--objects", "--no-object-names", second, "--not", first).split()
    assert len(new) < 15


LARGE = b"x" * 200


@pytest.mark.parametrize(
    ("limits", "named", "why"),
    [
        (SnapshotLimits(file=100), "sub/large", "larger than"),
        (SnapshotLimits(total=100), "sub/f.txt", "submodules contain more than"),
    ],
)
def test_what_is_too_large_inside_a_submodule_is_named(
    place: Worktree, limits: SnapshotLimits, named: str, why: str
) -> None:
    _edit(place.path / "sub")
    if limits.file == 100:
        (place.path / "sub" / "large").write_bytes(LARGE)
    else:
        commit(place.path / "sub", "large", LARGE.decode())
    (place.path / "beside").write_text("kept\n")
    taken = snapshot_tree(place.path, limits)
    assert named in taken.left_out
    assert why in taken.left_out_reasons[taken.left_out.index(named)]
    assert run_git(place.path, "show", f"{taken.commit}:beside") == "kept"


def test_damaged_repository_of_a_submodule_costs_nothing_else(place: Worktree) -> None:
    sub = place.path / "sub"
    _edit(sub)
    (place.path / "beside").write_text("kept\n")
    (Path(run_git(sub, "rev-parse", "--absolute-git-dir")) / "HEAD").write_text("garbage\n")
    taken = snapshot_tree(place.path)
    assert taken.left_out == ["sub/"]
    assert run_git(place.path, "show", f"{taken.commit}:beside") == "kept"


def test_many_changes_that_cannot_be_saved_are_counted(place: Worktree) -> None:
    for number in range(25):
        (place.path / "sub" / f"n{number:02}").write_text("precious\n")
    taken = snapshot_tree(place.path, SnapshotLimits(total=20))
    assert "sub/n00" in taken.left_out
    assert any("(15 more)" in reason for reason in taken.left_out_reasons)


def test_files_of_a_submodule_without_a_repository_are_named(place: Worktree) -> None:
    sub = place.path / "sub"
    (sub / ".git").unlink()
    taken = snapshot_tree(place.path)
    assert (taken.dirty, taken.left_out) == (True, ["sub/"])
    assert "without a repository" in taken.left_out_reasons[0]
    shutil.rmtree(sub)
    sub.mkdir()
    assert snapshot_tree(place.path).left_out == []


def test_submodule_of_another_object_format_is_named(
    repository: Path, library: Path, place: Worktree, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    run_git(other, "init", "--quiet", "--object-format=sha256")
    commit(other, "f.txt", "x\n")
    pointer = place.path / "sub" / ".git"
    pointer.unlink()
    (other / ".git").rename(pointer)
    _edit(place.path / "sub")
    (place.path / "beside").write_text("kept\n")
    taken = snapshot_tree(place.path)
    assert any(path.startswith("sub/") for path in taken.left_out)
    assert run_git(place.path, "show", f"{taken.commit}:beside") == "kept"


def _ref_below_the_stash(sub: Path) -> None:
    _commit(sub)
    run_git(sub, "update-ref", "refs/stash/x", "HEAD")


def test_ref_that_is_not_saved_costs_nothing(repository: Path, place: Worktree) -> None:
    sub = place.path / "sub"
    _ref_below_the_stash(sub)
    snapshot_tree(place.path)
    _lose(repository, place, "copy")
    assert "not restored: " not in worktrees.make_worktree(repository, "", place, existed=True)
    assert (sub / "f.txt").read_text() == "precious\n"


def test_newer_branch_that_excludes_a_saved_one_stays(repository: Path, place: Worktree) -> None:
    sub = place.path / "sub"
    base = run_git(sub, "rev-parse", "HEAD")
    run_git(sub, "switch", "--quiet", "-c", "a")
    head = commit(sub, "new", "new\n")
    run_git(sub, "switch", "--quiet", "--detach", base)
    _edit(sub)
    snapshot_tree(place.path)
    run_git(sub, "branch", "-D", "a")
    run_git(sub, "branch", "a/b")
    _lose(repository, place, "directory")
    worktrees.make_worktree(repository, "", place, existed=True)
    assert (sub / "f.txt").read_text() == "precious\n"
    refs = run_git(sub, "for-each-ref", "--format=%(objectname) %(refname)").splitlines()
    assert {f"{base} refs/heads/a/b", f"{head} refs/kandev/kept/{head[:16]}"} <= set(refs)


def test_branch_of_the_head_returns_even_if_too_many_others_are_newer(repository: Path, place: Worktree) -> None:
    sub = place.path / "sub"
    run_git(sub, "switch", "--quiet", "-c", "mine")
    head = run_git(sub, "rev-parse", "HEAD")
    branches = Path(run_git(sub, "rev-parse", "--absolute-git-dir")) / "refs" / "heads"
    run_git(sub, "switch", "--quiet", "-c", "b")
    newer = commit(sub, "new", "new\n")
    run_git(sub, "switch", "--quiet", "mine")
    for number in range(510):
        (branches / f"b{number}").write_text(f"{newer}\n")
    _edit(sub)
    snapshot_tree(place.path)
    _lose(repository, place, "copy")
    worktrees.make_worktree(repository, "", place, existed=True)
    assert run_git(sub, "rev-parse", "HEAD", "--symbolic-full-name", "HEAD").splitlines() == [head, "refs/heads/mine"]


def test_files_that_no_snapshot_has_are_not_overwritten(place: Worktree) -> None:
    sub = place.path / "sub"
    _edit(sub)
    snapshot_tree(place.path)
    (sub / ".git").unlink()
    (sub / "f.txt").write_text("newer\n")
    git = git_of(place.path)
    found = recovery_snapshots.find_recovery(git.text, REF)
    assert found
    assert "without a repository" in SubmoduleRestorer(git, found, rebuilt=False).restore()[0]
    assert (sub / "f.txt").read_text() == "newer\n"

"""A removed worktree is rebuilt with its uncommitted work."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from executors_app.machine.git import recovery_snapshots, repository_git, snapshot_restore, worktrees
from executors_app.machine.git.repository_git import RepositoryGitFailed
from executors_app.machine.git.workspace_git import GitError
from executors_app.machine.git.worktrees import Worktree
from executors_app.wire.errors import WorkspaceGone
from executors_app.wire.executions import WorkspaceState
from tests.executors.repositories import commit, run_git
from tests.workspace.trees import REF, make_six, snapshot_tree, state_of

Remove = Callable[[Path, Worktree], None]


def _by_git(repository: Path, worktree: Worktree) -> None:
    run_git(repository, "worktree", "remove", "--force", str(worktree.path))
    run_git(repository, "gc", "--quiet", "--prune=now")


def _by_hand(repository: Path, worktree: Worktree) -> None:
    shutil.rmtree(worktree.path)


def _by_hand_and_forgotten(repository: Path, worktree: Worktree) -> None:
    shutil.rmtree(worktree.path)
    run_git(repository, "worktree", "prune")
    run_git(repository, "gc", "--quiet", "--prune=now")


REMOVALS = pytest.mark.parametrize("remove", [_by_git, _by_hand, _by_hand_and_forgotten])


@REMOVALS
def test_removed_worktree_is_rebuilt_with_all_six_changes(repository: Path, worktree: Worktree, remove: Remove) -> None:
    make_six(worktree.path)
    before = state_of(worktree.path)
    assert len(before[0].splitlines()) == 6
    snapshot_tree(worktree.path)
    remove(repository, worktree)
    assert not worktree.path.exists()

    assert worktrees.worktree_state(worktree, partial(worktrees.OwnedRepository.open, repository)) == (
        WorkspaceState.REBUILDABLE,
        "",
    )
    worktrees.make_worktree(repository, "", worktree, existed=True)

    assert state_of(worktree.path) == before
    assert run_git(worktree.path, "branch", "--show-current") == worktree.branch


def test_rebuilding_begins_again_if_git_stumbles_over_the_record_of_another_worktree(
    repository: Path, worktree: Worktree, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_six(worktree.path)
    before, git = state_of(worktree.path), repository_git.run_git
    snapshot_tree(worktree.path)
    _by_git(repository, worktree)
    stumbles = iter([True])

    def stumble_once(directory: Path, *arguments: str, **options: Any) -> str:
        if "unlock" in arguments and next(stumbles, False):
            raise RepositoryGitFailed("fatal: failed to read .git/worktrees/other/commondir: Success")
        return git(directory, *arguments, **options)

    monkeypatch.setattr(worktrees, "run_git", stumble_once)
    worktrees.make_worktree(repository, "", worktree, existed=True)
    assert next(stumbles, False) is False
    assert state_of(worktree.path) == before


def _odd_changes(root: Path) -> None:
    for name in ("deleted", "staged deletion", "renamed", "staged twice", "mode", "becomes a link"):
        commit(root, name, f"{name}\n" * 5)
    (root / "deleted").unlink()
    run_git(root, "rm", "--quiet", "staged deletion")
    run_git(root, "mv", "renamed", "new name")
    for text in ("staged\n", "and changed again\n"):
        (root / "staged twice").write_text(text)
        (root / "added then changed").write_text(text)
        if text == "staged\n":
            run_git(root, "add", "staged twice", "added then changed")
    (root / "mode").chmod(0o700)
    (root / "becomes a link").unlink()
    (root / "becomes a link").symlink_to("mode")
    (root / "folder" / "deeper").mkdir(parents=True)
    (root / "folder" / "deeper" / "file").write_bytes(b"\0\xff")
    commit(root, ".gitignore", "*.secret\n")
    (root / "ignored.secret").write_text("not kept\n")


@REMOVALS
def test_unusual_changes_are_restored_and_ignored_files_are_not(
    repository: Path, worktree: Worktree, remove: Remove
) -> None:
    _odd_changes(worktree.path)
    status, files = state_of(worktree.path)
    files.pop("ignored.secret")
    snapshot_tree(worktree.path)
    remove(repository, worktree)

    note = worktrees.make_worktree(repository, "", worktree, existed=True)

    assert state_of(worktree.path) == (status, _as_git_keeps(files))
    assert note == (
        "Files that .gitignore names and empty directories are in no snapshot: those that were in the workspace are "
        "not restored."
    )


def test_present_worktree_and_one_that_is_made_for_the_first_time_have_no_note(
    repository: Path, worktree: Worktree
) -> None:
    assert worktrees.make_worktree(repository, "", worktree, existed=True) == ""
    _by_git(repository, worktree)
    assert worktrees.make_worktree(repository, "", worktree, existed=False) == ""


@REMOVALS
def test_work_without_a_snapshot_is_said_to_be_lost(repository: Path, worktree: Worktree, remove: Remove) -> None:
    commit(worktree.path, "finished", "finished\n")
    (worktree.path / "unfinished").write_text("unfinished\n")
    snapshot_tree(worktree.path)
    run_git(repository, "update-ref", "-d", REF)  # as git fetch --prune does in a mirror
    remove(repository, worktree)
    note = worktrees.make_worktree(repository, "", worktree, existed=True)
    assert (worktree.path / "finished").exists()
    assert note == recovery_snapshots.NO_SNAPSHOT_NOTE


@REMOVALS
@pytest.mark.parametrize("is_dirty", [True, False])
def test_uncommitted_work_that_was_set_aside_is_named(
    repository: Path, worktree: Worktree, remove: Remove, is_dirty: bool
) -> None:
    if is_dirty:
        (worktree.path / "unfinished").write_text("unfinished\n")
    snapshot_tree(worktree.path)
    commit(worktree.path, "finished", "finished\n")
    remove(repository, worktree)
    note = worktrees.make_worktree(repository, "", worktree, existed=True)
    assert ("uncommitted work in it is not restored" in note) == is_dirty
    if is_dirty:
        run_git(worktree.path, *note.split("It is kept: git ")[1].split(" writes")[0].split())
        assert (worktree.path / "unfinished").read_text() == "unfinished\n"


def _delete_index(index: Path) -> None:
    index.unlink()


def _damage_index(index: Path) -> None:
    index.write_bytes(b"no index")


def _empty_index(index: Path) -> None:
    index.write_bytes(b"")


def _zero_index(index: Path) -> None:
    index.write_bytes(bytes(index.stat().st_size))


def _index_of(worktree: Worktree) -> Path:
    return Path(run_git(worktree.path, "rev-parse", "--path-format=absolute", "--git-path", "index"))


BROKEN_INDEXES = pytest.mark.parametrize("break_index", [_delete_index, _empty_index, _zero_index, _damage_index])


@REMOVALS
@BROKEN_INDEXES
def test_files_return_although_the_index_was_broken_before_the_snapshot(
    repository: Path, worktree: Worktree, remove: Remove, break_index: Callable[[Path], None]
) -> None:
    make_six(worktree.path)
    files = state_of(worktree.path)[1]
    break_index(_index_of(worktree))
    taken = snapshot_tree(worktree.path)
    assert taken.left_out == ([] if break_index is _delete_index else ["staged changes"])
    remove(repository, worktree)

    worktrees.make_worktree(repository, "", worktree, existed=True)

    assert state_of(worktree.path)[1] == files


@BROKEN_INDEXES
def test_index_that_broke_after_the_snapshot_is_replaced_by_that_of_the_snapshot(
    repository: Path, worktree: Worktree, break_index: Callable[[Path], None]
) -> None:
    make_six(worktree.path)
    before = state_of(worktree.path)
    snapshot_tree(worktree.path)
    break_index(_index_of(worktree))
    shutil.rmtree(worktree.path)

    worktrees.make_worktree(repository, "", worktree, existed=True)

    assert state_of(worktree.path) == before


def test_head_that_names_nothing_is_named(repository: Path, worktree: Worktree) -> None:
    (_index_of(worktree).parent / "HEAD").write_bytes(b"\0" * 41)
    with pytest.raises(GitError, match="its HEAD names neither a branch nor a commit"):
        snapshot_tree(worktree.path)


def test_worktree_that_lost_only_its_pointer_has_no_note(repository: Path, worktree: Worktree) -> None:
    (worktree.path / "ignored").write_text("kept\n")
    snapshot_tree(worktree.path)
    (worktree.path / ".git").unlink()

    assert worktrees.make_worktree(repository, "", worktree, existed=True) == ""
    assert (worktree.path / "ignored").exists()


def _as_git_keeps(files: dict[str, tuple[bytes, int]]) -> dict[str, tuple[bytes, int]]:
    """Reduce modes to what git stores: whether a file is executable."""
    return {name: (content, 0o100755 if mode == 0o100700 else mode) for name, (content, mode) in files.items()}


@REMOVALS
def test_snapshot_older_than_the_last_commit_is_set_aside(repository: Path, worktree: Worktree, remove: Remove) -> None:
    (worktree.path / "README").write_text("unfinished\n")
    kept = snapshot_tree(worktree.path).commit
    commit(worktree.path, "README", "finished\n")
    remove(repository, worktree)

    worktrees.make_worktree(repository, "", worktree, existed=True)

    assert (worktree.path / "README").read_text() == "finished\n"
    assert run_git(worktree.path, "status", "--porcelain") == ""
    aside = run_git(repository, "for-each-ref", "--format=%(objectname)", "refs/kandev/kept/")
    assert aside == kept


def test_changes_staged_after_the_snapshot_take_precedence(repository: Path, worktree: Worktree) -> None:
    make_six(worktree.path)
    snapshot_tree(worktree.path)
    (worktree.path / "one").write_text("newer\n")
    run_git(worktree.path, "add", "one")
    before = state_of(worktree.path)
    shutil.rmtree(worktree.path)

    worktrees.make_worktree(repository, "", worktree, existed=True)

    assert state_of(worktree.path) == before


def test_rebuild_interrupted_by_a_crash_is_completed_by_the_next(
    repository: Path, worktree: Worktree, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_six(worktree.path)
    before = state_of(worktree.path)
    snapshot_tree(worktree.path)
    _by_git(repository, worktree)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:  # crash at exactly this point
        patch.setattr(snapshot_restore, "restore_uncommitted_work", interrupt)
        with pytest.raises(KeyboardInterrupt):
            worktrees.make_worktree(repository, "", worktree, existed=True)
    assert (
        worktrees.worktree_state(worktree, partial(worktrees.OwnedRepository.open, repository))[0]
        is WorkspaceState.REBUILDABLE
    )

    worktrees.make_worktree(repository, "", worktree, existed=True)

    assert state_of(worktree.path) == before


def test_existing_directory_is_never_removed(repository: Path, worktree: Worktree) -> None:
    make_six(worktree.path)
    snapshot_tree(worktree.path)
    _by_git(repository, worktree)
    worktree.path.mkdir()
    (worktree.path / "precious").write_text("mine\n")

    with pytest.raises(WorkspaceGone, match="no longer a worktree"):
        worktrees.make_worktree(repository, "", worktree, existed=True)

    assert [path.name for path in worktree.path.iterdir()] == ["precious"]


def test_snapshot_of_another_session_is_not_used(repository: Path, worktree: Worktree) -> None:
    make_six(worktree.path)
    snapshot_tree(worktree.path)
    _by_git(repository, worktree)
    kept = run_git(repository, "rev-parse", REF)
    other = Worktree(worktree.path.with_name("another-session"), worktree.branch)
    run_git(repository, "update-ref", "refs/kandev/recovery/another-session", kept)

    worktrees.make_worktree(repository, "", other, existed=True)

    assert run_git(other.path, "status", "--porcelain") == ""

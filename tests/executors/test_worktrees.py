"""Each session has a worktree, which returns whenever git still has it; no work is deleted."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from executors_app.agentctl.workspace.snapshots import take_snapshot
from executors_app.machine.git import worktrees
from executors_app.machine.git.git_process import git_environment
from executors_app.machine.git.repository_git import RepositoryGitFailed
from executors_app.machine.git.worktrees import Worktree
from executors_app.wire.errors import RepositoryUnusable, WorkspaceGone
from executors_app.wire.executions import WorkspaceState
from tests.executors.repositories import commit, run_git
from tests.services import ROOT
from tests.workspace.trees import git_of

SESSION = str(uuid.UUID(int=0x1234567890ABCDEF1234567890ABCDEF))


@pytest.fixture
def worktree(tmp_path: Path, repository: Path) -> Worktree:
    worktree = worktrees.session_worktree(tmp_path / "data", SESSION)
    worktrees.make_worktree(repository, "", worktree, existed=False)
    return worktree


def test_worktree_branch_follows_from_the_session(worktree: Worktree) -> None:
    assert worktree.branch == "kandev/1234567890ab"
    assert worktree.path.name == SESSION
    assert run_git(worktree.path, "branch", "--show-current") == worktree.branch
    assert (worktree.path / "README").read_text() == "hello\n"


def test_directory_of_worktrees_is_private(worktree: Worktree) -> None:
    assert worktree.path.parent.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("base", ["older", "v1", "only-remote", ""])
def test_worktree_starts_from_the_given_branch(tmp_path: Path, repository: Path, base: str) -> None:
    first = run_git(repository, "rev-parse", "HEAD")
    for ref in ("refs/heads/older", "refs/tags/v1", "refs/remotes/origin/only-remote"):
        run_git(repository, "update-ref", ref, first)
    newest = commit(repository, "later", "x\n")
    worktree = worktrees.session_worktree(tmp_path / "data", SESSION)

    worktrees.make_worktree(repository, base, worktree, existed=False)

    assert run_git(worktree.path, "rev-parse", "HEAD") == (first if base else newest)


@pytest.mark.parametrize("base", ["no-such-branch", "--upload-pack=touch x", "-"])
def test_base_that_is_no_commit_is_refused(tmp_path: Path, repository: Path, base: str) -> None:
    worktree = worktrees.session_worktree(tmp_path / "data", SESSION)
    with pytest.raises(
        RepositoryUnusable, match=r"has no commit at .* create a task with another base branch"
    ) as caught:
        worktrees.make_worktree(repository, base, worktree, existed=False)
    assert caught.value.permanent
    assert not worktree.path.exists()


def test_repository_without_commits_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    run_git(empty, "init", "--quiet")
    with pytest.raises(RepositoryUnusable, match=r"has no commit at 'HEAD' to start from\. Make a first commit"):
        worktrees.make_worktree(empty, "", worktrees.session_worktree(tmp_path / "data", SESSION), existed=False)


@pytest.mark.parametrize("missing", [True, False])
def test_directory_that_is_no_repository_is_refused(tmp_path: Path, repository: Path, missing: bool) -> None:
    plain = repository / "plain"
    if not missing:
        plain.mkdir()
    with pytest.raises(RepositoryUnusable) as caught:
        worktrees.make_worktree(plain, "", worktrees.session_worktree(tmp_path / "data", SESSION), existed=False)
    assert caught.value.permanent


def test_repeated_creation_changes_nothing(repository: Path, worktree: Worktree) -> None:
    (worktree.path / "README").write_text("changed\n")
    (worktree.path / "new").write_text("mine\n")
    run_git(worktree.path, "switch", "--quiet", "-c", "elsewhere")
    worktrees.make_worktree(repository, "", worktree, existed=True)
    assert (worktree.path / "README").read_text() == "changed\n"
    assert (worktree.path / "new").read_text() == "mine\n"
    assert run_git(worktree.path, "branch", "--show-current") == "elsewhere"


@pytest.fixture
def half_a_record(repository: Path) -> Path:
    """The record of another worktree whose last file git has created but not written yet; return that file."""
    record = repository / ".git/worktrees/other"
    record.mkdir(parents=True)
    (record / "gitdir").write_text(f"{repository.parent / 'other'}/.git\n")
    (record / "HEAD").write_text("ref: refs/heads/other\n")
    (record / "commondir").touch()
    return record / "commondir"


def test_worktree_that_another_process_is_just_adding_does_not_matter(
    repository: Path, tmp_path: Path, half_a_record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = worktrees.session_worktree(tmp_path / "data", SESSION)
    monkeypatch.setattr(time, "sleep", lambda seconds: half_a_record.write_text("../..\n"))
    worktrees.make_worktree(repository, "", made, existed=False)
    assert run_git(made.path, "branch", "--show-current") == made.branch


def test_record_that_stays_unfinished_is_the_reported_reason(
    repository: Path, tmp_path: Path, half_a_record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    with pytest.raises(RepositoryUnusable, match="worktrees/other/commondir"):
        worktrees.make_worktree(repository, "", worktrees.session_worktree(tmp_path / "data", SESSION), existed=False)


def test_deleted_directory_returns_with_commits_and_staged_work(repository: Path, worktree: Worktree) -> None:
    head = commit(worktree.path, "work", "committed\n")
    (worktree.path / "staged").write_text("staged\n")
    run_git(worktree.path, "add", "staged")
    shutil.rmtree(worktree.path)

    assert worktrees.worktree_state(worktree, partial(worktrees.OwnedRepository.open, repository)) == (
        WorkspaceState.REBUILDABLE,
        "",
    )
    worktrees.make_worktree(repository, "", worktree, existed=True)

    assert run_git(worktree.path, "rev-parse", "HEAD") == head
    assert (worktree.path / "work").read_text() == "committed\n"
    assert run_git(worktree.path, "status", "--porcelain") == "A  staged"
    assert worktrees.worktree_state(worktree, partial(worktrees.OwnedRepository.open, repository)) == (
        WorkspaceState.PRESENT,
        "",
    )


def test_deleted_directory_with_detached_head_is_restored_there(repository: Path, worktree: Worktree) -> None:
    run_git(worktree.path, "checkout", "--quiet", "--detach")
    head = commit(worktree.path, "work", "x\n")
    shutil.rmtree(worktree.path)
    worktrees.make_worktree(repository, "", worktree, existed=True)
    assert run_git(worktree.path, "rev-parse", "HEAD") == head
    assert run_git(worktree.path, "status", "--porcelain") == ""


def test_worktree_unknown_to_git_returns_from_its_branch(repository: Path, worktree: Worktree) -> None:
    head = commit(worktree.path, "work", "x\n")
    shutil.rmtree(worktree.path)
    run_git(repository, "worktree", "prune")
    assert worktrees.worktree_state(worktree, partial(worktrees.OwnedRepository.open, repository)) == (
        WorkspaceState.REBUILDABLE,
        "",
    )
    worktrees.make_worktree(repository, "", worktree, existed=True)
    assert run_git(worktree.path, "rev-parse", "HEAD") == head


def _delete_both(repository: Path, worktree: Worktree) -> None:
    shutil.rmtree(worktree.path)
    run_git(repository, "worktree", "prune")
    run_git(repository, "branch", "-D", worktree.branch)


def _delete_branch_ref(repository: Path, worktree: Worktree) -> None:
    shutil.rmtree(worktree.path)
    run_git(repository, "update-ref", "-d", f"refs/heads/{worktree.branch}")


@pytest.mark.parametrize("delete", [_delete_both, _delete_branch_ref])
def test_worktree_deleted_with_its_branch_is_not_replaced(
    repository: Path, worktree: Worktree, delete: Callable[[Path, Worktree], None]
) -> None:
    delete(repository, worktree)
    reason = worktrees.nothing_found(worktree)
    assert worktrees.worktree_state(worktree, partial(worktrees.OwnedRepository.open, repository)) == (
        WorkspaceState.GONE,
        reason,
    )
    with pytest.raises(WorkspaceGone) as caught:
        worktrees.make_worktree(repository, "", worktree, existed=True)
    assert caught.value.message == reason
    assert not worktree.path.exists()


def test_deleted_repository_is_the_reported_reason(repository: Path, worktree: Worktree) -> None:
    shutil.rmtree(worktree.path)
    shutil.rmtree(repository)
    state, reason = worktrees.worktree_state(worktree, partial(worktrees.OwnedRepository.open, repository))
    assert state is WorkspaceState.GONE
    assert str(repository) in reason


def test_other_files_in_its_place_are_left_alone(repository: Path, worktree: Worktree) -> None:
    _delete_both(repository, worktree)
    worktree.path.mkdir()
    (worktree.path / "precious").write_text("mine\n")
    assert (
        worktrees.worktree_state(worktree, partial(worktrees.OwnedRepository.open, repository))[0]
        is WorkspaceState.GONE
    )
    for existed in (True, False):
        with pytest.raises(WorkspaceGone, match="no longer a worktree"):
            worktrees.make_worktree(repository, "", worktree, existed=existed)
    assert (worktree.path / "precious").read_text() == "mine\n"


def test_files_stay_when_only_the_git_pointer_is_deleted(repository: Path, worktree: Worktree) -> None:
    (worktree.path / "README").write_text("changed\n")
    (worktree.path / ".git").unlink()
    worktrees.make_worktree(repository, "", worktree, existed=True)
    assert run_git(worktree.path, "status", "--porcelain") == "M README"


def leave_interrupted_checkout(repository: Path, worktree: Worktree) -> Path:
    """Leave what a ``git worktree add`` leaves that was killed during its checkout; return its record."""
    record = repository / ".git" / "worktrees" / worktree.path.name
    (record / "locked").write_text("initializing\n")
    (record / "index.lock").write_text("")
    (worktree.path / "README").unlink()
    return record


@pytest.mark.parametrize("left", ["all", "no pointer", "no directory", "record alone"])
def test_incomplete_worktree_is_recreated(repository: Path, worktree: Worktree, left: str) -> None:
    record = leave_interrupted_checkout(repository, worktree)
    if left == "no pointer":
        (worktree.path / ".git").unlink()
    if left in {"no directory", "record alone"}:
        shutil.rmtree(worktree.path)
    if left == "record alone":
        (record / "HEAD").unlink()
    assert worktrees.worktree_state(worktree, partial(worktrees.OwnedRepository.open, repository)) == (
        WorkspaceState.REBUILDABLE,
        "",
    )
    worktrees.make_worktree(repository, "", worktree, existed=False)
    assert (worktree.path / "README").read_text() == "hello\n"
    assert run_git(worktree.path, "status", "--porcelain") == ""


def test_branch_left_by_a_killed_creation_is_used(tmp_path: Path, repository: Path) -> None:
    worktree = worktrees.session_worktree(tmp_path / "data", SESSION)
    run_git(repository, "branch", worktree.branch)
    worktrees.make_worktree(repository, "", worktree, existed=False)
    assert run_git(worktree.path, "branch", "--show-current") == worktree.branch


def test_branch_checked_out_elsewhere_is_reported_with_the_place(repository: Path, worktree: Worktree) -> None:
    shutil.rmtree(worktree.path)
    run_git(repository, "worktree", "prune")
    run_git(repository, "switch", "--quiet", worktree.branch)
    with pytest.raises(RepositoryGitFailed, match=f"is checked out at {repository}") as caught:
        worktrees.make_worktree(repository, "", worktree, existed=True)
    assert caught.value.permanent
    assert not worktree.path.exists()


def test_worktrees_on_an_unmounted_disk_are_not_pruned(tmp_path: Path, repository: Path, worktree: Worktree) -> None:
    theirs = tmp_path / "theirs"
    run_git(repository, "worktree", "add", "--quiet", "-b", "theirs", str(theirs))
    theirs.rename(tmp_path / "unmounted")
    shutil.rmtree(worktree.path)
    worktrees.make_worktree(repository, "", worktree, existed=True)
    (tmp_path / "unmounted").rename(theirs)
    assert run_git(theirs, "branch", "--show-current") == "theirs"


def test_hooks_and_fsmonitor_of_the_repository_never_run(tmp_path: Path, repository: Path) -> None:
    ran = tmp_path / "ran"
    hook = repository / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {ran}\n")
    hook.chmod(0o755)
    run_git(repository, "config", "core.fsmonitor", str(hook))
    worktrees.make_worktree(repository, "", worktrees.session_worktree(tmp_path / "data", SESSION), existed=False)
    assert not ran.exists()
    run_git(repository, "status")
    assert ran.exists(), "the trap itself does not work"


def test_environment_cannot_redirect_git(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    worktree = worktrees.session_worktree(tmp_path / "data", SESSION)
    worktrees.make_worktree(repository, "", worktree, existed=False)
    assert (worktree.path / "README").exists()


USER_SETTINGS = {
    "safe.bareRepository": "explicit",
    "core.hooksPath": "/nope",
    "init.templateDir": "/nope",
    "core.worktree": "/nope",
    "status.showUntrackedFiles": "no",
    "checkout.defaultRemote": "nope",
    "worktree.guessRemote": "true",
    "branch.autoSetupMerge": "always",
    "protocol.allow": "never",
    "user.useConfigOnly": "true",
    "commit.gpgSign": "true",
    "color.ui": "always",
    "feature.manyFiles": "true",
    "submodule.recurse": "true",
}


@pytest.mark.parametrize("key", USER_SETTINGS)
def test_settings_of_the_user_do_not_matter_to_a_bare_repository(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    bare = tmp_path / "bare.git"
    run_git(repository, "clone", "--quiet", "--bare", str(repository), str(bare))
    run_git(repository, "config", "--file", str(tmp_path / ".gitconfig"), key, USER_SETTINGS[key])
    monkeypatch.setenv("HOME", str(tmp_path))
    git_environment.cache_clear()
    worktree = worktrees.session_worktree(tmp_path / "data", SESSION)
    try:
        worktrees.make_worktree(bare, "main", worktree, existed=False)
        (worktree.path / "new").write_text("new\n")
        take_snapshot(git_of(worktree.path), SESSION, tmp_path / "copy", "turn_end")
        shutil.rmtree(worktree.path)
        worktrees.make_worktree(bare, "main", worktree, existed=True)
    finally:
        git_environment.cache_clear()
    assert {path.name for path in worktree.path.iterdir()} == {".git", "README", "new"}


def test_concurrent_creations_make_one_worktree(tmp_path: Path, repository: Path) -> None:
    worktree = worktrees.session_worktree(tmp_path / "data", SESSION)
    maker = (
        "import sys; from pathlib import Path; from executors_app.machine.git import worktrees;"
        "worktrees.make_worktree(Path(sys.argv[1]), '', "
        "worktrees.session_worktree(Path(sys.argv[2]), sys.argv[3]), existed=False)"
    )
    argv = [sys.executable, "-c", maker, str(repository), str(tmp_path / "data"), SESSION]
    makers = [subprocess.Popen(argv, cwd=ROOT) for _ in range(3)]
    assert [one.wait(60) for one in makers] == [0, 0, 0]
    assert run_git(worktree.path, "status", "--porcelain") == ""

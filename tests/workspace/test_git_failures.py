"""Failures of git that recur are permanent, name their cause and a next step, and leave nothing behind."""

from __future__ import annotations

import errno
import os
import shutil
import time
from pathlib import Path

import pytest

from executors_app.machine.git import git_failures, workspace_root, worktrees
from executors_app.machine.git.git_failures import explain_failure
from executors_app.machine.git.repository_git import RepositoryGitFailed
from executors_app.machine.git.worktrees import Worktree
from executors_app.wire.errors import RepositoryUnusable
from tests.executors.repositories import commit, run_git
from tests.workspace.trees import SESSION

ID = "a" * 40
MESSAGES = {
    "branch_in_the_way": "fatal: cannot lock ref 'refs/heads/kandev/x': 'refs/heads/kandev' exists; cannot create "
    "'refs/heads/kandev/x'",
    "branch_exists": "fatal: a branch named 'kandev/x' already exists",
    "branch_file_in_the_way": "fatal: cannot lock ref 'refs/heads/kandev/x': unable to create lock file "
    "/r/.git/refs/heads/kandev/x.lock; non-directory in the way",
    "names_differ_in_case": "error: You're on a case-insensitive filesystem, and the remote you are trying to fetch "
    "from has references that only differ in casing.",
    "branch_checked_out_elsewhere": "fatal: 'kandev/x' is already used by worktree at '/repo with space'",
    "worktree_locked": "fatal: '/data/x' is a missing but locked worktree;\nuse 'add -f -f' to override",
    "filter_failed": "error: external filter 'git-lfs filter-process' failed\nfatal: a.bin: smudge filter lfs failed",
    "filter_process_failed": "git-lfs: 1: git-lfs: not found\nfatal: the remote end hung up unexpectedly",
    "disk_full": "error: unable to write file x: No space left on device",
    "read_only": "fatal: could not create directory: Read-only file system",
    "dubious_ownership": "fatal: detected dubious ownership in repository at '/repo'",
    "objects_missing": f"fatal: could not fetch {ID} from promisor remote",
    "line_ends": "fatal: CRLF would be replaced by LF in a.txt",
    "repository_without_commit": "error: 'inner/' does not have a commit checked out\nfatal: adding files failed",
    "damaged_index": "fatal: .git/index: index file smaller than expected",
    "corrupt_object": f"error: object file .git/objects/aa/{ID[2:]} is empty\nfatal: loose object {ID} is corrupt",
    "lock_file": "fatal: Unable to create '/nowhere/index.lock': File exists.",
    "path_too_long": "error: unable to create file a/b: File name too long",
    "invalid_path": "error: invalid path 'a\\b'",
    "unknown_format": "fatal: unknown repository extension found:\n\tnewthing",
    "bad_setting": "fatal: bad config line 3 in file .git/config",
    "permission": "error: unable to create file a: Permission denied",
}


@pytest.mark.parametrize("rule", git_failures.FAILURE_RULES, ids=lambda rule: rule.name)
def test_every_row_recognises_its_message(rule: git_failures.FailureRule) -> None:
    known = explain_failure(MESSAGES[rule.name])
    assert known is not None
    assert (known.name, known.permanent) == (rule.name, rule.permanent)
    assert "{" not in known.sentence
    assert "try" in known.next_step.lower()


@pytest.mark.parametrize("message", ["", "Killed", "fatal: early EOF", "fatal: Out of memory, malloc failed"])
def test_unknown_failure_stays_temporary(message: str) -> None:
    assert explain_failure(message) is None


def test_lock_file_is_permanent_once_it_is_stale(tmp_path: Path) -> None:
    lock = tmp_path / "index.lock"
    lock.touch()
    message = f"fatal: Unable to create '{lock}': File exists."
    fresh = explain_failure(message)
    os.utime(lock, (time.time() - 3600,) * 2)
    stale = explain_failure(message)
    assert fresh and stale
    assert (fresh.permanent, stale.permanent) == (False, True)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.ENAMETOOLONG])
def test_errors_of_the_disk_are_permanent(number: int) -> None:
    def fail() -> None:
        raise OSError(number, os.strerror(number), "/data/worktrees/x")

    answer = workspace_root.run_and_answer(fail)
    error = workspace_root.parse_error(answer)
    assert isinstance(error, RepositoryUnusable)
    assert error.permanent


def test_other_errors_of_the_system_stay_temporary() -> None:
    def fail() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    assert not workspace_root.parse_error(workspace_root.run_and_answer(fail)).permanent


def _new(tmp_path: Path) -> Worktree:
    return worktrees.session_worktree(tmp_path / "data", SESSION)


def _nothing_left(repository: Path, worktree: Worktree) -> None:
    assert not worktree.path.exists()
    assert not worktrees.OwnedRepository.open(repository).commit_of(f"refs/heads/{worktree.branch}")
    assert len(run_git(repository, "worktree", "list").splitlines()) == 1


@pytest.mark.parametrize("taken", ["kandev", "nested"])
def test_branch_in_the_way_is_named(repository: Path, tmp_path: Path, taken: str) -> None:
    made = _new(tmp_path)
    name = taken if taken == "kandev" else f"{made.branch}/x"
    run_git(repository, "branch", name)
    with pytest.raises(RepositoryUnusable, match=f"a branch named {name}") as caught:
        worktrees.make_worktree(repository, "main", made, existed=False)
    assert caught.value.permanent
    _nothing_left(repository, made)


@pytest.mark.parametrize("how", ["process", "smudge"])
def test_missing_program_of_a_required_filter_leaves_nothing(repository: Path, tmp_path: Path, how: str) -> None:
    commit(repository, ".gitattributes", "*.bin filter=vault\n")
    commit(repository, "a.bin", "x\n")
    run_git(repository, "config", f"filter.vault.{how}", "no-such-program")
    run_git(repository, "config", "filter.vault.required", "true")
    made = _new(tmp_path)
    with pytest.raises(RepositoryUnusable, match=r"needs (the filter vault|a filter)") as caught:
        worktrees.make_worktree(repository, "main", made, existed=False)
    assert caught.value.permanent
    _nothing_left(repository, made)


def test_missing_object_is_permanent_and_leaves_nothing(repository: Path, tmp_path: Path) -> None:
    blob = run_git(repository, "rev-parse", "HEAD:README")
    (repository / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    made = _new(tmp_path)
    with pytest.raises(RepositoryUnusable, match="is damaged") as caught:
        worktrees.make_worktree(repository, "main", made, existed=False)
    assert caught.value.permanent
    _nothing_left(repository, made)


def test_failed_rebuild_leaves_the_branch_and_no_directory(repository: Path, worktree: Worktree) -> None:
    commit(worktree.path, ".gitattributes", "*.bin filter=vault\n")
    head = commit(worktree.path, "a.bin", "x\n")
    shutil.rmtree(worktree.path)
    run_git(repository, "worktree", "prune")
    run_git(repository, "config", "filter.vault.smudge", "no-such-program")
    run_git(repository, "config", "filter.vault.required", "true")
    with pytest.raises(RepositoryGitFailed):
        worktrees.make_worktree(repository, "main", worktree, existed=True)
    assert not worktree.path.exists()
    assert run_git(repository, "rev-parse", worktree.branch) == head
    run_git(repository, "config", "--unset", "filter.vault.required")
    worktrees.make_worktree(repository, "main", worktree, existed=True)
    assert run_git(worktree.path, "rev-parse", "HEAD") == head


def test_tag_named_like_the_base_is_not_the_base(repository: Path, tmp_path: Path) -> None:
    first = run_git(repository, "rev-parse", "HEAD")
    newest = commit(repository, "later", "x\n")
    run_git(repository, "tag", "main", first)
    made = _new(tmp_path)
    worktrees.make_worktree(repository, "main", made, existed=False)
    assert run_git(made.path, "rev-parse", "HEAD") == newest


def test_branch_that_differs_only_in_case_is_one_permanent_failure(repository: Path, tmp_path: Path) -> None:
    # What a branch named Kandev is on a file system that does not distinguish upper and lower case.
    (repository / ".git" / "refs" / "heads" / "kandev").write_text("another branch")
    made = worktrees.session_worktree(tmp_path / "data", SESSION)
    with pytest.raises(RepositoryUnusable, match="differs only in case") as caught:
        worktrees.make_worktree(repository, "main", made, existed=False)
    assert caught.value.permanent
    assert not made.path.exists()

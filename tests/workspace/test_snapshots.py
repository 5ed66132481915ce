"""A snapshot stores all uncommitted work and changes nothing of the user's."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from executors_app.agentctl.workspace.working_tree import SnapshotLimits
from executors_app.machine.git.workspace_git import GitError
from executors_app.machine.git.worktrees import Worktree
from tests.drills.process_groups import has_ended
from tests.executors.repositories import commit, run_git
from tests.waiting import PATIENCE, eventually
from tests.workspace.trees import REF, SESSION, git_of, make_six, snapshot_tree, state_of


def files_of(root: Path, revision: str = REF) -> dict[str, str]:
    """Return names and contents of the files in a commit."""
    names = run_git(root, "ls-tree", "-r", "-z", "--name-only", revision).split("\0")
    return {name: run_git(root, "cat-file", "-p", f"{revision}:{name}") for name in names if name}


def test_two_commits_store_the_files_and_the_index(worktree: Worktree) -> None:
    make_six(worktree.path)

    taken = snapshot_tree(worktree.path)

    assert (taken.dirty, taken.changed, taken.ref) == (True, True, REF)
    files = files_of(worktree.path)
    assert files == {
        "README": "hello",
        **dict.fromkeys(("one", "two", "three"), "after"),
        "untracked": "new",
        "with space\nand line": "new too",
        "staged": "staged",
    }
    assert set(files_of(worktree.path, f"{REF}^2")) == {"README", "one", "two", "three", "staged"}
    head = run_git(worktree.path, "rev-parse", "HEAD")
    assert run_git(worktree.path, "rev-parse", f"{REF}^1", f"{REF}^2^") == f"{head}\n{head}"


def test_index_head_and_branch_of_the_user_are_untouched(repository: Path, worktree: Worktree) -> None:
    make_six(worktree.path)
    index = Path(run_git(worktree.path, "rev-parse", "--absolute-git-dir")) / "index"
    state = state_of(worktree.path)
    before = (index.read_bytes(), index.stat().st_mtime_ns, run_git(repository, "show-ref", "--heads", "--head"))

    snapshot_tree(worktree.path)

    assert (
        index.read_bytes(),
        index.stat().st_mtime_ns,
        run_git(repository, "show-ref", "--heads", "--head"),
    ) == before
    assert state_of(worktree.path) == state


def test_edit_within_a_second_of_staging_is_not_missed(worktree: Worktree) -> None:
    for number in range(5):
        (worktree.path / "racy").write_text(f"a{number}")
        run_git(worktree.path, "add", "racy")
        (worktree.path / "racy").write_text(f"b{number}")
        snapshot_tree(worktree.path)
        assert files_of(worktree.path)["racy"] == f"b{number}"


def test_unchanged_workspace_gets_no_new_snapshot(worktree: Worktree) -> None:
    assert not snapshot_tree(worktree.path).dirty
    (worktree.path / "new").write_text("x")
    first, second = snapshot_tree(worktree.path), snapshot_tree(worktree.path)
    assert (first.changed, second.changed, second.commit) == (True, False, first.commit)
    run_git(worktree.path, "add", "new")
    assert snapshot_tree(worktree.path).changed, "staged files are part of the snapshot"


def test_ignored_files_are_not_stored(worktree: Worktree) -> None:
    (worktree.path / ".gitignore").write_text("*.secret\n")
    (worktree.path / "key.secret").write_text("secret")
    snapshot_tree(worktree.path)
    assert "key.secret" not in files_of(worktree.path)


def test_files_over_the_size_limits_are_left_out_and_named(worktree: Worktree) -> None:
    for name, size in (("small", 10), ("medium", 60), ("large", 61), ("huge", 200)):
        (worktree.path / name).write_bytes(b"x" * size)
    (worktree.path / "README").write_bytes(b"y" * 101)

    taken = snapshot_tree(worktree.path, SnapshotLimits(file=100, total=100))

    assert taken.left_out == ["README", "huge", "large"]
    assert set(files_of(worktree.path)) == {"README", "small", "medium"}
    assert files_of(worktree.path)["README"] == "hello"


def test_nested_repository_is_left_out_and_the_rest_is_stored(worktree: Worktree) -> None:
    (worktree.path / "inner").mkdir()
    run_git(worktree.path / "inner", "init", "--quiet")
    (worktree.path / "new").write_text("x")
    assert snapshot_tree(worktree.path).left_out == ["inner/"]
    assert "new" in files_of(worktree.path)


def test_conflict_during_a_merge_is_stored_and_left_in_place(worktree: Worktree) -> None:
    root = worktree.path
    run_git(root, "switch", "--quiet", "-c", "theirs")
    commit(root, "README", "theirs\n")
    run_git(root, "switch", "--quiet", worktree.branch)
    commit(root, "README", "ours\n")
    with pytest.raises(subprocess.CalledProcessError):
        run_git(root, "merge", "theirs")

    snapshot_tree(root)

    assert run_git(root, "status", "--porcelain") == "UU README"
    assert "<<<<<<<" in files_of(root)["README"]


def test_everything_is_stored_before_the_first_commit(tmp_path: Path) -> None:
    root = tmp_path / "fresh"
    root.mkdir()
    run_git(root, "init", "--quiet")
    assert not snapshot_tree(root).dirty
    (root / "first").write_text("x")
    assert snapshot_tree(root).dirty
    assert files_of(root) == {"first": "x"}


def test_lock_of_the_user_is_neither_awaited_nor_removed(worktree: Worktree) -> None:
    lock = Path(run_git(worktree.path, "rev-parse", "--absolute-git-dir")) / "index.lock"
    lock.touch()
    (worktree.path / "new").write_text("x")
    snapshot_tree(worktree.path)
    assert lock.exists()
    assert "new" in files_of(worktree.path)


def test_hooks_and_fsmonitor_never_run(tmp_path: Path, repository: Path, worktree: Worktree) -> None:
    ran = tmp_path / "ran"
    hooks = repository / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("reference-transaction", "post-index-change", "pre-commit", "post-commit", "fsmonitor"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {ran}\n")
        (hooks / name).chmod(0o755)
    run_git(repository, "config", "core.fsmonitor", str(hooks / "fsmonitor"))
    (worktree.path / "new").write_text("x")
    snapshot_tree(worktree.path)
    assert not ran.exists()
    run_git(worktree.path, "status")
    assert ran.exists(), "the trap itself does not work"


def test_hanging_filter_is_ended_with_its_children(repository: Path, worktree: Worktree, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    run_git(
        repository, "config", "filter.stuck.clean", f"echo $$ > {pid_file}.new; mv {pid_file}.new {pid_file}; sleep 600"
    )
    (worktree.path / ".gitattributes").write_text("*.stuck filter=stuck\n")
    (worktree.path / "a.stuck").write_text("x")

    for seconds in (1.0, 5.0, 25.0):
        with pytest.raises(GitError, match="did not finish within"):
            snapshot_tree(worktree.path, SnapshotLimits(seconds=seconds))
        if pid_file.exists():
            break  # otherwise a busy machine has not started the filter in time

    eventually(lambda: has_ended(int(pid_file.read_text())), describe="the killed process has ended")


def test_killed_snapshot_does_not_hinder_the_next(worktree: Worktree) -> None:
    for left in (".copy", ".copy.lock"):
        (worktree.path.parent / f"{worktree.path.name}{left}").write_text("torn")
    (worktree.path / "new").write_text("x")
    snapshot_tree(worktree.path)
    assert "new" in files_of(worktree.path)


def test_git_processes_end_when_their_owner_closes(worktree: Worktree) -> None:
    git = git_of(worktree.path)
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    git._live.add(process)
    git.close()
    assert process.wait(PATIENCE) == -signal.SIGKILL
    assert os.getpgid(0) != process.pid


def test_settings_of_the_repository_hide_nothing(worktree: Worktree) -> None:
    root = worktree.path
    for name, value in (
        ("status.showUntrackedFiles", "no"),
        ("diff.ignoreSubmodules", "all"),
        ("core.untrackedCache", "true"),
        ("status.relativePaths", "true"),
    ):
        run_git(root, "config", name, value)
    (root / "folder").mkdir()
    (root / "folder" / "new").write_text("x")
    assert snapshot_tree(root).dirty
    assert "folder/new" in files_of(root)
    (root / "README").unlink()
    snapshot_tree(root)
    assert set(files_of(root)) == {"folder/new"}
    run_git(root, "rm", "--quiet", "--cached", "README")
    assert snapshot_tree(root).changed
    assert files_of(root, f"{REF}^2") == {}


def test_undone_or_committed_work_leaves_a_clean_snapshot(worktree: Worktree) -> None:
    first = snapshot_tree(worktree.path)
    (worktree.path / "new").write_text("x")
    assert snapshot_tree(worktree.path).dirty
    (worktree.path / "new").unlink()
    undone = snapshot_tree(worktree.path)
    assert (undone.dirty, undone.changed) == (False, True)
    assert files_of(worktree.path) == files_of(worktree.path, first.commit)
    commit(worktree.path, "new", "committed\n")
    assert (snapshot_tree(worktree.path).dirty, snapshot_tree(worktree.path).changed) == (False, False)
    assert "new" in files_of(worktree.path, f"{REF}^2")


@pytest.mark.parametrize("index", ["--glob=refs/nothing", "0" * 40, "HEAD"])
def test_snapshot_forged_by_an_agent_is_replaced(worktree: Worktree, index: str) -> None:
    root = worktree.path
    taken = snapshot_tree(root)
    message = f"x\n\nKandev-Session: {SESSION}\nKandev-Head: {'0' * 40}\nKandev-Index: {index}\n"
    forged = run_git(root, "commit-tree", f"{taken.commit}^{{tree}}", "-m", message)
    run_git(root, "update-ref", REF, forged)
    assert snapshot_tree(root).changed
    assert snapshot_tree(root).commit != forged


def test_ignored_files_are_counted_but_not_what_is_in_ignored_directories(worktree: Worktree) -> None:
    (worktree.path / ".gitignore").write_text("*.log\nnode_modules/\n")
    (worktree.path / "a.log").write_text("x\n")
    (worktree.path / "src").mkdir()
    (worktree.path / "src" / "b.log").write_text("x\n")
    (worktree.path / "node_modules").mkdir()
    for number in range(5):
        (worktree.path / "node_modules" / str(number)).write_text("x\n")

    taken = snapshot_tree(worktree.path)

    assert taken.ignored_count == 3
    assert taken.left_out == []
    assert sorted(run_git(worktree.path, "ls-tree", "-r", "--name-only", REF).splitlines()) == [".gitignore", "README"]

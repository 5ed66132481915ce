"""The files by which git finds worktrees and branches have one parser."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path

import pytest

from executors_app.agentctl.workspace.agent_preparation import prepare_workspace
from executors_app.agentctl.workspace.changes import git_log
from executors_app.agentctl.workspace.workspace import Workspace
from executors_app.machine.git import git_directory, worktrees
from executors_app.machine.git.git_directory import GITDIR_PREFIX, Head, InvalidPointer, parse_pointer
from executors_app.machine.git.worktrees import Worktree
from executors_app.repositories import layout
from executors_app.wire.executions import WorkspaceState
from tests.executors.repositories import commit, run_git
from tests.workspace.trees import SESSION, git_of

BASE = Path("/base/tree")


@pytest.mark.parametrize(
    ("data", "path"),
    [
        (b"gitdir: /repo/.git/worktrees/x\n", "/repo/.git/worktrees/x"),
        (b"gitdir: /repo/.git/worktrees/x", "/repo/.git/worktrees/x"),
        (b"gitdir: /repo/.git/worktrees/x\r\n", "/repo/.git/worktrees/x"),
        (b"gitdir: ../../repo/.git/worktrees/x\n", "/repo/.git/worktrees/x"),
        (b"gitdir: /repo/ends with space \n", "/repo/ends with space "),
        (b"gitdir:/repo", None),
        (b"/repo", None),
        (b"gitdir: \n", None),
        (b"gitdir: /a\n/b\n", None),
        (b"gitdir: /a\0b\n", None),
        (b"", None),
        (None, None),
    ],
)
def test_pointers_are_parsed_as_git_does(data: bytes | None, path: str | None) -> None:
    if path is None:
        with pytest.raises(InvalidPointer):
            parse_pointer(data, BASE, GITDIR_PREFIX)
    else:
        assert parse_pointer(data, BASE, GITDIR_PREFIX) == Path(path)


@pytest.mark.parametrize(
    ("data", "head"),
    [
        (b"ref: refs/heads/main\n", Head(ref="refs/heads/main")),
        (b"ref:refs/heads/a/b", Head(ref="refs/heads/a/b")),
        (b"refs/heads/rebased\n", Head(ref="refs/heads/rebased")),
        (b"%s\n" % (b"a" * 40), Head(commit="a" * 40)),
        (b"%s\n" % (b"a" * 64), Head(commit="a" * 64)),
        (b"ref: refs/heads/../../etc/passwd\n", Head()),
        (b"ref: refs/heads/a b\n", Head()),
        (b"ref: main\n", Head()),
        (b"\xff\xfe", Head()),
        (None, Head()),
    ],
)
def test_heads_are_parsed_or_unknown(data: bytes | None, head: Head) -> None:
    assert git_directory.parse_head(data) == head


@pytest.mark.parametrize(
    ("name", "revisions"),
    [
        ("main", ["refs/heads/main", "refs/remotes/origin/main", "refs/remotes/main", "refs/tags/main"]),
        ("HEAD", ["HEAD"]),
        ("refs/tags/v1", ["refs/tags/v1"]),
        ("a" * 40, ["a" * 40]),
        ("main~2", ["refs/heads/main~2", "refs/remotes/origin/main~2", "refs/remotes/main~2", "refs/tags/main~2"]),
        ("-x y", []),
    ],
)
def test_base_names_mean_branches_first(name: str, revisions: list[str]) -> None:
    assert git_directory.revisions_for(name) == revisions


def test_commit_id_is_a_base(repository: Path) -> None:
    head = run_git(repository, "rev-parse", "HEAD")
    assert worktrees.resolve_start_commit(repository, head) == head
    assert worktrees.resolve_start_commit(repository, head[:10]) == head


def test_log_of_a_branch_is_not_that_of_a_tag(repository: Path, worktree: Worktree) -> None:
    run_git(repository, "tag", "topic")
    run_git(repository, "branch", "topic")
    run_git(worktree.path, "switch", "--quiet", "topic")
    made = commit(worktree.path, "work", "x\n")
    [newest, *_] = git_log(git_of(worktree.path), 5, 0, "topic")["commits"]
    assert newest["id"] == made


def make_pointers_relative(worktree: Worktree) -> Path:
    """Do what ``git worktree repair --relative-paths`` of git 2.48 does; return the record."""
    record = Path((worktree.path / ".git").read_text().removeprefix("gitdir: ").strip())
    (worktree.path / ".git").write_text(f"gitdir: {os.path.relpath(record, worktree.path)}\n")
    (record / "gitdir").write_text(f"{os.path.relpath(worktree.path / '.git', record)}\n")
    return record


def test_worktree_with_relative_pointers_is_present_everywhere(repository: Path, worktree: Worktree) -> None:
    record = make_pointers_relative(worktree)
    opened = partial(worktrees.OwnedRepository.open, repository)
    assert worktrees.worktree_state(worktree, opened)[0] is WorkspaceState.PRESENT
    assert Workspace(worktree.path, {}).report()["branch"] == worktree.branch
    assert layout.common_directory(worktree.path) == repository / ".git"
    assert layout.worktree_directory(worktree.path, repository / ".git") == record


def test_worktree_with_relative_pointers_is_rebuilt_from_its_record(repository: Path, worktree: Worktree) -> None:
    (worktree.path / "staged").write_text("staged\n")
    run_git(worktree.path, "add", "staged")
    make_pointers_relative(worktree)
    worktree.path.rename(worktree.path.with_name("lost"))
    worktrees.make_worktree(repository, "", worktree, existed=True)
    assert run_git(worktree.path, "status", "--porcelain") == "A  staged"


def test_pipe_in_place_of_a_pointer_blocks_nothing(worktree: Worktree) -> None:
    (worktree.path / ".git").unlink()
    os.mkfifo(worktree.path / ".git")
    assert git_directory.git_directory_of(worktree.path) is None
    assert Workspace(worktree.path, {}).report()["branch"] is None


def test_session_id_names_the_record(repository: Path, worktree: Worktree) -> None:
    assert [record.name for record in git_directory.list_records(repository / ".git")] == [SESSION]


def test_record_of_a_worktree_that_was_moved_by_hand_is_repaired(repository: Path, worktree: Worktree) -> None:
    moved = worktree.path.with_name("moved")
    worktree.path.rename(moved)
    prepare_workspace(git_of(moved), "")
    run_git(repository, "worktree", "prune", "--expire=now")
    assert run_git(moved, "branch", "--show-current") == worktree.branch


def test_record_that_a_living_worktree_uses_is_not_changed(repository: Path, worktree: Worktree) -> None:
    copied = worktree.path.with_name("copied")
    shutil.copytree(worktree.path, copied)
    prepare_workspace(git_of(copied), "")
    assert str(worktree.path) in run_git(repository, "worktree", "list")

"""Snapshots of past turns outlive the next ones, within a limit, under one ref for each session."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from executors_app.agentctl.workspace import kept_turns
from executors_app.agentctl.workspace.kept_turns import keep_turn_snapshot
from executors_app.agentctl.workspace.review_parts import Part, PartOfBranch
from tests.agentctl.running import Running
from tests.executors.repositories import make_repository, run_git
from tests.workspace.trees import git_of

REF = "refs/kandev/turns/session-1"


async def test_turn_can_be_shown_after_unused_objects_were_pruned(running: Running, repository: Path) -> None:
    snapshots = []
    for number in range(4):
        (repository / "made").write_text(f"{number}\n")
        snapshots.append((await running.sidecar.snapshots.take("turn_end")).commit)
        await running.sidecar.snapshots.take("asked")
    run_git(repository, "prune", "--expire=now")
    assert run_git(repository, "rev-parse", f"{REF}^@").split() == snapshots
    git = git_of(repository)
    found = PartOfBranch(git, "session-1", Part(before=snapshots[0], after=snapshots[1])).list_changes("")
    git.close()
    assert (found["part_problem"], [file["path"] for file in found["files"]]) == ("", ["made"])


def test_oldest_snapshots_go_and_a_ref_of_another_kind_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_turns, "MAX_SNAPSHOTS", 2)
    root = make_repository(tmp_path / "repository")
    commits = [run_git(root, "commit-tree", "HEAD^{tree}", "-m", str(number)) for number in range(4)]
    git = git_of(root)
    for each in commits[:3]:
        assert keep_turn_snapshot(git, "session-1", each)
        assert keep_turn_snapshot(git, "session-1", each)
    assert run_git(root, "rev-parse", f"{REF}^@").split() == commits[1:3]
    run_git(root, "update-ref", REF, run_git(root, "rev-parse", "HEAD^{tree}"))
    assert not keep_turn_snapshot(git, "session-1", commits[3])
    assert run_git(root, "rev-parse", f"{REF}^@") == commits[3]
    assert run_git(root, "for-each-ref", "refs/kandev/").count("\n") == 0
    git.close()


def write_file(root: Path, text: str) -> None:
    path = root / ".git" / REF
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def write_orphan(root: Path) -> None:
    """Let the ref name a commit whose parents the repository does not have."""
    tree = run_git(root, "rev-parse", "HEAD^{tree}")
    who = "A <a@localhost> 0 +0000"
    text = f"tree {tree}\nparent {'1' * 40}\nparent {'2' * 40}\nauthor {who}\ncommitter {who}\n\nforged\n"
    command = ["git", "-C", str(root), "hash-object", "-t", "commit", "-w", "--stdin"]
    made = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    run_git(root, "update-ref", REF, made.stdout.strip())


PLANTED: dict[str, Callable[[Path], object]] = {
    "a branch": lambda root: run_git(root, "symbolic-ref", REF, "refs/heads/main"),
    "a branch that does not exist": lambda root: run_git(root, "symbolic-ref", REF, "refs/heads/new"),
    "garbage": lambda root: write_file(root, "garbage\n"),
    "a commit without its parents": write_orphan,
    "an object that is not there": lambda root: write_file(root, f"{'3' * 40}\n"),
}


@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED)
def test_planted_ref_neither_blocks_snapshots_nor_leads_them_to_a_branch(
    tmp_path: Path, plant: Callable[[Path], object]
) -> None:
    root = make_repository(tmp_path / "repository")
    head = run_git(root, "rev-parse", "main")
    snapshots = [run_git(root, "commit-tree", "HEAD^{tree}", "-m", str(number)) for number in range(2)]
    plant(root)
    git = git_of(root)
    for snapshot in snapshots:
        keep_turn_snapshot(git, "session-1", snapshot)
    git.close()
    assert run_git(root, "rev-parse", f"{REF}^@").split()[-2:] == snapshots
    heads = run_git(root, "for-each-ref", "--format=%(refname) %(objectname)", "refs/heads/")
    assert heads == f"refs/heads/main {head}"


async def test_lost_snapshots_of_earlier_turns_are_told(running: Running, repository: Path) -> None:
    (repository / "made").write_text("1\n")
    await running.sidecar.snapshots.take("turn_end")
    write_orphan(repository)
    (repository / "made").write_text("2\n")
    newest = await running.sidecar.snapshots.take("turn_end")
    assert run_git(repository, "rev-parse", f"{REF}^@") == newest.commit
    assert "snapshots of earlier turns" in (await running.line("log"))["text"]

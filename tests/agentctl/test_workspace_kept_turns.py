"""Snapshots of past turns outlive the next ones, within a limit, under one ref for each session."""

from __future__ import annotations

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
        keep_turn_snapshot(git, "session-1", each)
        keep_turn_snapshot(git, "session-1", each)
    assert run_git(root, "rev-parse", f"{REF}^@").split() == commits[1:3]
    run_git(root, "update-ref", REF, run_git(root, "rev-parse", "HEAD^{tree}"))
    keep_turn_snapshot(git, "session-1", commits[3])
    assert run_git(root, "rev-parse", f"{REF}^@") == commits[3]
    assert run_git(root, "for-each-ref", "refs/kandev/").count("\n") == 0
    git.close()

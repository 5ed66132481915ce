"""The archive follows an agent that left the session's branch, within the session's own refs."""

from __future__ import annotations

from pathlib import Path

from executors_app.machine.git import workspace_root
from executors_app.machine.git.worktrees import Worktree
from tests.executors.repositories import commit, run_git
from tests.repositories.workspaces import BRANCH, HEAD, RECOVERY, SESSION, Place
from tests.workspace.trees import snapshot_tree


def _send(place: Place, sandbox: Path) -> dict[str, str]:
    """Send the work as agentctl does, and return the refs of the archive."""
    worktree = Worktree(sandbox.with_name(SESSION), BRANCH)
    bundle = sandbox.with_name("work.bundle")
    with bundle.open("wb") as into:
        packed = workspace_root.pack_work(sandbox, worktree, list(place.archive.tips().values()), into)
    if packed["packed"]:
        place.archive.take_in(bundle, BRANCH)
    place.archive.follow(BRANCH, packed["refs"])
    return place.archive.tips()


def test_archive_follows_a_renamed_branch(place: Place, sandbox: Path) -> None:
    run_git(sandbox, "branch", "-m", "feature/x")
    made = commit(sandbox, "work", "x\n")
    snapshot_tree(sandbox)
    tips = _send(place, sandbox)
    assert tips[HEAD] == made
    assert set(tips) == {HEAD, RECOVERY}


def test_archive_follows_a_new_branch_turn_by_turn(place: Place, sandbox: Path) -> None:
    run_git(sandbox, "switch", "--quiet", "-c", "feature/y")
    for number in range(3):
        made = commit(sandbox, "work", f"{number}\n")
        snapshot_tree(sandbox)
        assert _send(place, sandbox)[HEAD] == made
    assert set(place.archive.tips()) == {HEAD, RECOVERY}


def test_branch_that_the_agent_left_for_the_base_stays(place: Place, sandbox: Path) -> None:
    made = commit(sandbox, "work", "x\n")
    snapshot_tree(sandbox)
    _send(place, sandbox)
    run_git(sandbox, "config", "kandev.base", "main")
    run_git(sandbox, "switch", "--quiet", "main")
    commit(sandbox, "other", "x\n")
    snapshot_tree(sandbox)
    assert _send(place, sandbox)[HEAD] == made

"""A removed worktree comes back with its uncommitted work, with real agentctls and a real supervisor."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.drills.deployment import Deployment, Session
from tests.waiting import eventually
from tests.workspace.trees import make_six, state_of

pytestmark = pytest.mark.any_database

Lose = Callable[[Deployment, Session, Path], None]


def work_for_turns(session: Session, turns: int) -> None:
    """Wait until that many turns have ended and the agent is idle."""
    eventually(
        lambda: session.names().count("session.run.completed") == turns,
        timeout=60,
        describe=f"{turns} turns have completed",
    )
    session.wait_for("WAITING_FOR_INPUT")


def stopped_and_removed_by_git(deployment: Deployment, session: Session, root: Path) -> None:
    """Stop the session normally: the snapshot is the one that agentctl took when it ended."""
    deployment.api("POST", f"{session.path}/stop/")
    eventually(lambda: session.execution["status"] == "stopped", timeout=60, describe="the session is stopped")
    subprocess.run(["git", "-C", str(deployment.repository), "worktree", "remove", "--force", str(root)], check=True)
    deployment.api("POST", f"{session.path}/resume/", {"mode": "auto"})


def killed_and_removed_by_hand(deployment: Deployment, session: Session, root: Path) -> None:
    """Kill everything: the snapshot is the one taken at the end of the last turn."""
    session.prompt("work 1")
    work_for_turns(session, 2)
    deployment.kill_server()
    session.kill_everything()
    shutil.rmtree(root)
    deployment.serve()


@pytest.mark.parametrize("lose", [stopped_and_removed_by_git, killed_and_removed_by_hand])
def test_removed_worktree_is_restored_with_all_six_uncommitted_changes(deployment: Deployment, lose: Lose) -> None:
    deployment.serve()
    session = deployment.start_session("work 1")
    work_for_turns(session, 1)
    root = Path(session.row["worktree_path"])
    make_six(root)
    before = state_of(root)
    assert len(before[0].splitlines()) == 6

    lose(deployment, session, root)

    eventually(root.is_dir, timeout=60, describe="the worktree exists")
    eventually(lambda: session.execution["status"] == "ready", timeout=60, describe="agentctl is ready")
    assert state_of(root) == before
    note = "Files that .gitignore names and empty directories are in no snapshot"
    eventually(
        lambda: note in str(session.receipts()[-1]["evidence"]), timeout=60, describe="the receipt says what is lost"
    )
    eventually(lambda: note in str(session.row["metadata"]), timeout=60, describe="the warning says what is lost")
    status = deployment.api("GET", f"{session.path}/git/status/")
    assert [len(status[part]) for part in ("staged", "unstaged", "untracked")] == [1, 3, 2]
    session.prompt("work 1")
    eventually(lambda: session.prompts()[-1]["state"] == "done", timeout=60, describe="the last prompt is done")
    assert state_of(root) == before

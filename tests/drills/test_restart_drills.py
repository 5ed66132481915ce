"""The restart drills A to D: real processes, everything killed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable

from tests.drills.deployment import Deployment, Session
from tests.waiting import eventually


def talking(session: Session) -> None:
    """Wait until the agent is in mid-turn and what it says is in the log."""
    session.wait_for("RUNNING")
    eventually(lambda: "tick" in session.agent_text(), timeout=30, describe="the agent talks")


def finish_turn(session: Session) -> None:
    """Wait until the first turn is over."""
    eventually(lambda: "session.run.completed" in session.names(), timeout=60, describe="the first turn is over")


def test_drill_a_agent_in_mid_turn_survives_a_control_plane_crash(deployment: Deployment) -> None:
    deployment.serve()
    session = deployment.start_session("work 4\nask")
    talking(session)
    before = session.lasting_pids()

    deployment.kill_server()
    heard = session.said()
    eventually(lambda: len(session.said()) > len(heard), describe="the agent goes on talking")
    eventually(lambda: "permission.requested" in session.journal(), timeout=30, describe="it asks a permission")
    deployment.serve()

    status = session.wait_for("RUNNING")
    assert status["pending_permissions"] == 1
    assert session.lasting_pids() == before
    asked = deployment.api("GET", f"{session.path}/permissions/")["results"][0]
    option = asked["options"][0]["option_id"]
    deployment.api(
        "POST",
        f"{session.path}/permissions/{asked['id']}/",
        {"option_id": option, "resume_token": asked["resume_token"]},
    )
    session.wait_for("WAITING_FOR_INPUT")

    assert session.agent_text() == session.said()
    assert session.names().count("session.run.started") == 1
    assert session.names().count("session.run.completed") == 1
    assert [row["state"] for row in session.prompts()] == ["done"]
    assert [(row["kind"], row["verified"]) for row in session.receipts()][-1] == ("reattached", "same_process")


def test_drill_b_killed_agent_is_resumed_with_its_conversation(deployment: Deployment) -> None:
    deployment.env["KANDEV_CONTINUE"] = "off"
    deployment.serve()
    session = deployment.start_session("remember walrus")
    session.wait_for("WAITING_FOR_INPUT")
    finish_turn(session)
    session.prompt("work 30")
    talking(session)
    deployment.kill_server()
    session.kill_everything()

    document = deployment.recover()

    row = document["sessions"][0]
    assert row["receipt_kind"] in ("loaded", "resumed")
    assert row["session_state"] == session.row["state"] == "WAITING_FOR_INPUT"
    task = deployment.rows("SELECT state FROM tasks")[0]
    assert task["state"] == "REVIEW"
    assert [one["state"] for one in session.prompts()] == ["done", "interrupted"]
    assert session.names().count("session.run.interrupted") == 1
    deployment.serve()
    session.prompt("what was the word?")
    eventually(lambda: "walrus" in session.agent_text().rpartition("tick")[2], timeout=30, describe="it remembers")


def test_drill_c_workspace_of_an_agent_without_resume_stays_open(deployment: Deployment) -> None:
    deployment.serve()
    session = deployment.start_session("write kept.txt hello", {"supports_session_resume": False})
    finish_turn(session)
    deployment.kill_server()
    session.kill_everything()

    deployment.recover()

    row = session.row
    assert (row["state"], row["error_code"]) == ("ERROR", "not_resumable")
    assert session.execution["status"] == "ready"
    deployment.serve()
    names = [one["name"] for one in deployment.api("GET", f"{session.path}/files/?path=")["entries"]]
    assert "kept.txt" in names
    assert session.status()["resume_reason"] == "not_resumable"


def test_drill_d_missing_worktree_is_reported_and_others_recover(deployment: Deployment) -> None:
    def lose(gone: Session) -> None:
        lost = gone.row
        shutil.rmtree(lost["worktree_path"])
        git = ["git", "-C", str(deployment.repository)]
        subprocess.run([*git, "worktree", "prune"], check=True)
        subprocess.run([*git, "branch", "-qD", lost["worktree_branch"]], check=True)

    lose_one_of_two(deployment, lose)


def lose_one_of_two(deployment: Deployment, lose: Callable[[Session], None], *, passes: int = 1) -> None:
    """Drill D: ``lose`` removes worktree and branch of one of two sessions that have died.

    ``passes``: how many recovery passes the runtime may need until it can tell that the worktree is gone.
    """
    deployment.serve()
    gone = deployment.start_session("remember one")
    other = deployment.start_session("remember two")
    for session in (gone, other):
        finish_turn(session)
    deployment.kill_server()
    for session in (gone, other):
        session.kill_everything()
    branch = gone.row["worktree_branch"]
    lose(gone)
    shutil.rmtree(
        deployment.data / "archives" / f"{gone.id}.git", ignore_errors=True
    )  # otherwise it could be rebuilt from there

    for _ in range(passes):
        deployment.recover()
        if gone.execution["status"] == "error":
            break
    assert (gone.row["state"], gone.row["error_code"]) == ("ERROR", "worktree_missing")
    assert branch in gone.row["error_message"]
    assert gone.execution["resume_token"]
    assert other.row["state"] == "WAITING_FOR_INPUT"
    assert other.receipts()[-1]["kind"] == "loaded"

"""Restart drills that hold on every runtime: real processes, everything killed.

A runtime's own test module subclasses them. ``deployment`` is a fixture: a Kandev whose sessions run on that
runtime, prepared and not yet serving.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any, ClassVar

import pytest

from executors_app.machine.git.recovery_snapshots import session_recovery_ref
from tests.drills.deployment import MANAGE, Deployment, Session
from tests.drills.session_steps import start_idle_session, wait_for_first_turn, wait_until_talking
from tests.executors.repositories import run_git
from tests.preloaded import PreloadedProcess
from tests.waiting import eventually

LOG_TABLES = ("session_events", "continuity_receipts", "session_intents", "session_prompts", "session_runs")


def log_rows(deployment: Deployment) -> dict[str, Any]:
    """Return the rows of all tables that record events, receipts, intents, prompts and runs."""
    return {table: deployment.rows(f"SELECT * FROM {table} ORDER BY 1") for table in LOG_TABLES}  # noqa: S608


class RestartDrills:
    """Drills A to D; pytest collects the subclasses, not this class."""

    recovery_passes: ClassVar[int] = 1
    """How many recovery passes the runtime may need until it can tell that a workspace is gone."""

    def lose_workspace(self, deployment: Deployment, session: Session) -> None:
        """Remove the worktree and the branch of a session."""
        lost = session.row
        shutil.rmtree(lost["worktree_path"])
        git = ["git", "-C", str(deployment.repository)]
        subprocess.run([*git, "worktree", "prune"], check=True)
        subprocess.run([*git, "branch", "-qD", lost["worktree_branch"]], check=True)

    @pytest.mark.any_database
    def test_drill_a_agent_in_mid_turn_survives_a_control_plane_crash(self, deployment: Deployment) -> None:
        deployment.serve()
        session = deployment.start_session("work 8\nask")
        session.wait_for("RUNNING")
        wait_until_talking(session)
        before = session.lasting_pids()

        deployment.kill_server()
        log = session.agent_log()
        eventually(lambda: len(session.agent_log()) > len(log), describe="the agent keeps writing")
        eventually(lambda: "permission.requested" in session.journal(), describe="the agent requests a permission")
        deployment.serve()

        # The web server may answer before the supervisor has read what the agent did meanwhile.
        eventually(lambda: session.status()["pending_permissions"] == 1, describe="the permission request is shown")
        session.wait_for("RUNNING")
        assert session.lasting_pids() == before
        permission = deployment.api("GET", f"{session.path}/permissions/")["results"][0]
        option = permission["options"][0]["option_id"]
        deployment.api(
            "POST",
            f"{session.path}/permissions/{permission['id']}/",
            {"option_id": option, "resume_token": permission["resume_token"]},
        )
        session.wait_for("WAITING_FOR_INPUT")

        assert session.agent_text() == session.agent_log()
        assert session.names().count("session.run.started") == 1
        assert session.names().count("session.run.completed") == 1
        assert [row["state"] for row in session.prompts()] == ["done"]
        assert [(row["kind"], row["verified"]) for row in session.receipts()][-1] == ("reattached", "same_process")

    def test_drill_b_killed_agent_is_resumed_with_its_conversation(self, deployment: Deployment) -> None:
        deployment.env["KANDEV_CONTINUE"] = "off"
        deployment.serve()
        session = deployment.start_session("remember walrus")
        session.wait_for("WAITING_FOR_INPUT")
        wait_for_first_turn(session)
        session.prompt("work 30")
        session.wait_for("RUNNING")
        wait_until_talking(session)
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
        eventually(
            lambda: "walrus" in session.agent_text().rpartition("tick")[2],
            describe="the agent knows the word",
        )

    @pytest.mark.any_database
    def test_drill_c_workspace_of_an_agent_without_resume_stays_open(self, deployment: Deployment) -> None:
        deployment.serve()
        session = deployment.start_session("write kept.txt hello", {"supports_session_resume": False})
        wait_for_first_turn(session)
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

    @pytest.mark.any_database
    def test_drill_d_missing_worktree_is_reported_and_others_recover(self, deployment: Deployment) -> None:
        deployment.serve()
        gone = deployment.start_session("remember one")
        other = deployment.start_session("remember two")
        for session in (gone, other):
            wait_for_first_turn(session)
        deployment.kill_server()
        for session in (gone, other):
            session.kill_everything()
        branch = gone.row["worktree_branch"]
        self.lose_workspace(deployment, gone)
        # Otherwise it could be rebuilt from a snapshot: in its archive, or in the team's repository if it was published
        # just before the supervisor was killed.
        shutil.rmtree(deployment.data / "archives" / f"{gone.id}.git", ignore_errors=True)
        run_git(deployment.repository, "update-ref", "-d", session_recovery_ref(gone.id))

        for _ in range(self.recovery_passes):
            deployment.recover()
            if gone.execution["status"] == "error":
                break
        assert (gone.row["state"], gone.row["error_code"]) == ("ERROR", "worktree_missing")
        assert branch in gone.row["error_message"]
        assert gone.execution["resume_token"]
        assert other.row["state"] == "WAITING_FOR_INPUT"
        assert other.receipts()[-1]["kind"] == "loaded"


class SecondSweepDrill:
    """A second sweep changes nothing."""

    @pytest.mark.any_database
    def test_second_sweep_starts_writes_and_announces_nothing(self, deployment: Deployment) -> None:
        deployment.serve()
        living, dead = start_idle_session(deployment), start_idle_session(deployment)
        deployment.kill_server()
        dead.kill_everything()
        deployment.recover()
        before, processes = log_rows(deployment), [session.lasting_pids() for session in (living, dead)]

        document = deployment.recover()

        assert log_rows(deployment) == before
        assert [session.lasting_pids() for session in (living, dead)] == processes
        assert [row["agent_action"] for row in document["sessions"]] == ["reattach", "reattach"]


class ConcurrentSweepsDrill:
    """Concurrent sweeps resume a session once."""

    def test_three_concurrent_sweeps_resume_a_session_once(self, deployment: Deployment) -> None:
        deployment.serve()
        session = start_idle_session(deployment)
        deployment.kill_server()
        session.kill_everything()
        starts = session.journal().count('"kind":"agent.started"')

        command = [str(MANAGE), "recover_sessions", "--wait", "60", "--json"]
        sweeps = [PreloadedProcess(command, env=deployment.env, stdout=subprocess.PIPE) for _ in range(3)]
        answers = [json.loads(sweep.communicate()) for sweep in sweeps]

        assert [sweep.returncode for sweep in sweeps] == [0, 0, 0]
        assert all(answer["sessions"][0]["session_state"] == "WAITING_FOR_INPUT" for answer in answers)
        assert session.journal().count('"kind":"agent.started"') == starts + 1
        assert [row["kind"] for row in session.receipts()].count("loaded") == 1


class StoppedSessionDrill:
    """A restart does not start a session that its user stopped."""

    @pytest.mark.any_database
    def test_stopped_session_stays_stopped_over_a_restart_until_prompted(self, deployment: Deployment) -> None:
        deployment.serve()
        session = start_idle_session(deployment)
        deployment.api("POST", f"{session.path}/stop/", {})
        eventually(lambda: session.execution["status"] == "stopped", describe="the session is stopped")
        eventually(lambda: not session.processes(), describe="no process of the session runs")
        deployment.kill_server()
        deployment.recover()
        assert session.execution["status"] == "stopped"
        assert not session.processes()

        deployment.serve()
        assert session.status()["resume_reason"] == "stopped_by_user"
        session.prompt("what was the word?")

        eventually(lambda: session.agent_text().count("walrus") == 2, timeout=60, describe="the agent knows the word")
        assert session.receipts()[-1]["kind"] == "loaded"

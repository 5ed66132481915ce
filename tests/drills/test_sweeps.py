"""A second sweep, concurrent sweeps, and a sweep beside a running server change nothing more."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

from tests.drills.deployment import MANAGE, ROOT, Deployment, Session
from tests.waiting import eventually

LOG_TABLES = ("session_events", "continuity_receipts", "session_intents", "session_prompts", "session_runs")


def written(deployment: Deployment) -> dict[str, Any]:
    """Return all that was ever written, started or announced."""
    return {table: deployment.rows(f"SELECT * FROM {table}") for table in LOG_TABLES}  # noqa: S608


def idle_session(deployment: Deployment) -> Session:
    """Return a session whose first turn is over, with all its events and receipts."""
    session = deployment.start_session("remember walrus")
    eventually(lambda: "session.run.completed" in session.names(), timeout=60, describe="the first turn is over")
    session.wait_for("WAITING_FOR_INPUT")
    eventually(lambda: "session.attention" in session.names(), describe="somebody is to look at it")
    return session


def test_second_sweep_starts_writes_and_announces_nothing(deployment: Deployment) -> None:
    deployment.serve()
    living, dead = idle_session(deployment), idle_session(deployment)
    deployment.kill_server()
    dead.kill_everything()
    deployment.recover()
    before, processes = written(deployment), [session.lasting_pids() for session in (living, dead)]

    document = deployment.recover()

    assert written(deployment) == before
    assert [session.lasting_pids() for session in (living, dead)] == processes
    assert [row["agent_action"] for row in document["sessions"]] == ["reattach", "reattach"]


def test_recovery_command_waits_until_the_log_has_everything(deployment: Deployment) -> None:
    deployment.serve()
    session = idle_session(deployment)
    deployment.kill_server()
    session.kill_everything()

    deployment.recover()

    (row,) = deployment.rows("SELECT journal_seq FROM executors_running")
    assert row["journal_seq"] == json.loads(session.journal().splitlines()[-1])["seq"]


def test_three_concurrent_sweeps_resume_a_session_once(deployment: Deployment) -> None:
    deployment.serve()
    session = idle_session(deployment)
    deployment.kill_server()
    session.kill_everything()
    starts = session.journal().count('"kind":"agent.started"')

    command = [sys.executable, str(MANAGE), "recover_sessions", "--wait", "60", "--json"]
    sweeps = [
        subprocess.Popen(command, env=deployment.env, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        for _ in range(3)
    ]
    answers = [json.loads(sweep.communicate(timeout=90)[0]) for sweep in sweeps]

    assert [sweep.returncode for sweep in sweeps] == [0, 0, 0]
    assert all(answer["sessions"][0]["session_state"] == "WAITING_FOR_INPUT" for answer in answers)
    assert session.journal().count('"kind":"agent.started"') == starts + 1
    assert [row["kind"] for row in session.receipts()].count("loaded") == 1


def test_sweep_beside_a_running_server_leaves_the_work_to_it(deployment: Deployment) -> None:
    deployment.serve()
    session = idle_session(deployment)
    before, processes = written(deployment), session.lasting_pids()

    document = deployment.recover()

    assert document["sessions"][0]["rule"] == "foreign_lease"
    assert written(deployment) == before
    assert session.lasting_pids() == processes


def test_sigterm_stops_the_control_plane_and_no_agent(deployment: Deployment) -> None:
    deployment.serve()
    session = idle_session(deployment)
    before, processes = written(deployment), session.lasting_pids()

    deployment.kill_server(signal.SIGTERM)
    assert session.lasting_pids() == processes
    assert session.execution["owner"] == ""
    deployment.serve()

    session.wait_for("WAITING_FOR_INPUT")
    assert written(deployment) == before
    assert session.lasting_pids() == processes


def test_stopped_session_stays_stopped_over_a_restart_until_prompted(deployment: Deployment) -> None:
    deployment.serve()
    session = idle_session(deployment)
    deployment.api("POST", f"{session.path}/stop/", {})
    eventually(lambda: session.execution["status"] == "stopped", timeout=30, describe="it is stopped")
    eventually(lambda: not session.processes(), describe="nothing of it runs")
    deployment.kill_server()
    deployment.recover()
    assert session.execution["status"] == "stopped"
    assert not session.processes()

    deployment.serve()
    assert session.status()["resume_reason"] == "stopped_by_user"
    session.prompt("what was the word?")

    eventually(lambda: session.agent_text().count("walrus") == 2, timeout=60, describe="it remembers")
    assert session.receipts()[-1]["kind"] == "loaded"

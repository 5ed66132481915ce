"""Work that an agent begins without a prompt is a turn: it survives kills, and the prompts that wait run once."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import pytest

from tests.drills.deployment import ROOT, Deployment, Session
from tests.drills.session_steps import continue_prompts
from tests.waiting import eventually

pytestmark = pytest.mark.any_database


def start_alone(deployment: Deployment, **env: str) -> Session:
    """Return a session whose agent works without a prompt after its first turn."""
    deployment.env |= {"KANDEV_AGENT_TURN_QUIET": "60", **env}
    deployment.serve()
    command = [sys.executable, "-m", "tests.support.faulty_agent", "--behaviour", "works_alone"]
    session = deployment.start_session("work alone", {"command": command, "env": {"PYTHONPATH": str(ROOT)}})
    eventually(lambda: own_turns(session), timeout=60, describe="the agent works on its own")
    return session


def own_turns(session: Session) -> list[dict[str, Any]]:
    rows = session.deployment.api("GET", f"{session.path}/runs/")["results"]
    return [row for row in rows if row["origin"] == "agent"]


def notes(session: Session, name: str) -> list[str]:
    path = session.agent_home / name
    return path.read_text().splitlines() if path.exists() else []


def finish(session: Session) -> None:
    (session.agent_home / "announce").touch()
    (session.agent_home / "finish").touch()


def test_own_turn_survives_a_kill_of_the_control_plane_and_holds_the_prompt(deployment: Deployment) -> None:
    session = start_alone(deployment)
    session.prompt("next")
    deployment.kill_server()
    said = session.journal().count("alone")
    eventually(lambda: session.journal().count("alone") > said, describe="the agent works on")
    deployment.serve()

    eventually(lambda: session.agent_text().count("alone") > said, timeout=60, describe="its output is in the log")
    (turn,) = own_turns(session)
    status = session.status()
    assert (turn["state"], status["state"], status["work_state"]) == ("running", "RUNNING", "working")
    assert notes(session, "taken") == ["work alone"], "the prompt waits"

    finish(session)
    eventually(lambda: "next" in notes(session, "taken"), timeout=60, describe="the prompt is delivered")
    session.wait_for("WAITING_FOR_INPUT")
    (turn,) = own_turns(session)
    assert (turn["state"], turn["reason"], turn["stop_reason"]) == ("completed", "announced", "end_turn")
    assert notes(session, "taken") == ["work alone", "next"]
    assert notes(session, "refused") == []


def test_own_turn_is_interrupted_once_by_a_kill_of_agentctl_and_not_continued(deployment: Deployment) -> None:
    session = start_alone(deployment, KANDEV_CONTINUE="on")
    os.kill(session.execution["pid"], signal.SIGKILL)  # agentctl, whose guard ends the agent

    eventually(lambda: len(session.receipts()) >= 2, timeout=60, describe="the agent was started again")
    session.wait_for("WAITING_FOR_INPUT")
    (turn,) = own_turns(session)
    assert turn["state"] == "interrupted"
    assert session.names().count("session.run.interrupted") == 1
    assert continue_prompts(session) == []
    assert [row["text"] for row in session.prompts()] == ["work alone"], "nobody prompted it, so nothing is sent"

    session.prompt("next")
    eventually(lambda: "next" in notes(session, "taken"), timeout=60, describe="the prompt is delivered")
    assert "while you worked between two turns" in session.journal()
    assert notes(session, "taken") == ["work alone", "next"]


def test_refused_prompt_returns_to_the_queue_and_is_taken_once(deployment: Deployment) -> None:
    session = start_alone(deployment, KANDEV_AGENT_TURN_LIMIT="0")
    session.prompt("next")
    eventually(lambda: len(own_turns(session)) == 2, timeout=60, describe="the agent has refused the prompt")
    assert "next" not in notes(session, "taken")
    deployment.kill_server()
    deployment.env["KANDEV_AGENT_TURN_LIMIT"] = "1800"
    deployment.serve()
    finish(session)

    eventually(lambda: "next" in notes(session, "taken"), timeout=90, describe="the prompt is delivered")
    session.wait_for("WAITING_FOR_INPUT")
    assert notes(session, "taken") == ["work alone", "next"]
    first, second, *again = session.prompts()
    assert {row["state"] for row in session.prompts()} == {"done"}
    assert (first["kind"], second["kind"], {row["kind"] for row in again}) == ("user", "user", {"retry"})


def test_cancel_ends_the_agents_own_work(deployment: Deployment) -> None:
    session = start_alone(deployment)
    session.prompt("next")
    deployment.api("POST", f"{session.path}/cancel/")
    eventually(lambda: "next" in notes(session, "taken"), timeout=60, describe="the prompt is delivered")
    (turn,) = own_turns(session)
    assert turn["state"] == "cancelled"
    assert notes(session, "refused") == []

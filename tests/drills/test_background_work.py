"""What a turn leaves running is listed truthfully, whichever process dies, and is named when it ends."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import pytest

from tests.drills.deployment import ROOT, Deployment, Session
from tests.waiting import eventually

pytestmark = pytest.mark.any_database
COMMAND = "sleep 3987"


def _with_command_left(deployment: Deployment) -> Session:
    """Return a session whose agent has left a command running, which the status lists."""
    command = [sys.executable, "-m", "tests.support.faulty_agent", "--behaviour", "leaves_processes"]
    session = deployment.start_session("leave 3987", {"command": command, "env": {"PYTHONPATH": str(ROOT)}})
    eventually(lambda: _listed(session) == [COMMAND], timeout=60, describe="the command is listed")
    return session


def _listed(session: Session) -> list[str]:
    return [process["command"] for process in session.status()["background_processes"]]


def _ended(session: Session) -> dict[str, Any] | None:
    """Return what the log says of the end of the processes; None as long as it says nothing."""
    found = [event["payload"] for event in session.events() if event["name"] == "session.outside_work.interrupted"]
    assert len(found) <= 1
    return found[0] if found else None


def _prompts_given(session: Session) -> list[str]:
    lines = [json.loads(line) for line in session.journal().splitlines() if '"prompt.accepted"' in line]
    return [line["text"] for line in lines]


def _agent_pid(session: Session) -> int:
    started = [line for line in session.journal().splitlines() if '"agent.started"' in line]
    return int(json.loads(started[-1])["pid"])


def test_command_outlives_turns_and_restarts_of_the_control_plane(deployment: Deployment) -> None:
    deployment.serve()
    session = _with_command_left(deployment)
    before = session.status()
    assert before["background"]["is_current"]
    assert before["background_processes"][0]["cpu_seconds"] is not None

    deployment.kill_server()
    deployment.serve()
    session.prompt("remember heron")
    eventually(lambda: session.names().count("session.run.completed") == 2, timeout=60, describe="a second turn")

    assert _listed(session) == [COMMAND]
    assert session.status()["background_processes"][0]["since"] == before["background_processes"][0]["since"]
    assert session.names().count("session.processes") == 1, "nothing has changed"
    assert _ended(session) is None


@pytest.mark.parametrize("killed", ["agent", "agentctl"])
def test_command_that_ends_with_its_agent_is_named(deployment: Deployment, killed: str) -> None:
    deployment.serve()
    session = _with_command_left(deployment)
    pid = session.execution["pid"] if killed == "agentctl" else _agent_pid(session)

    os.kill(pid, signal.SIGKILL)

    told = eventually(lambda: _ended(session), timeout=60, describe="the log names what has ended") or {}
    assert (told["processes"], told["process_count"], told["was_working"]) == ([COMMAND], 1, False)
    eventually(lambda: len(session.receipts()) >= 2, timeout=60, describe="the agent was started again")
    assert _listed(session) == []
    session.prompt("and now?")
    eventually(lambda: len(_prompts_given(session)) == 2, timeout=60, describe="the prompt was delivered")
    given = _prompts_given(session)[-1]
    assert f"- {COMMAND}" in given
    assert given.endswith("and now?")


def test_session_falls_asleep_and_names_what_that_ends(deployment: Deployment) -> None:
    deployment.env.update({"KANDEV_IDLE_SLEEP": "3", "KANDEV_BACKGROUND_PROCESSES": "keep"})
    deployment.serve()
    session = _with_command_left(deployment)
    path = f"tasks/{session.status()['task_id']}/sessions/{session.status()['session_id']}/background/"

    assert deployment.api("PATCH", path, {"policy": "end"})["policy"] == "end"

    eventually(lambda: session.status()["asleep"], timeout=60, describe="the session is asleep")
    told = eventually(lambda: _ended(session), describe="the log names what has ended") or {}
    assert (told["reason"], told["processes"]) == ("idle", [COMMAND])
    eventually(lambda: not session.processes(), describe="no process of the session runs")
    assert _listed(session) == []

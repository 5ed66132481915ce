"""An agent sleeps while its usage limit lasts, without a process, and goes on by itself when the limit ends."""

from __future__ import annotations

import sys

import pytest

from tests.drills.deployment import ROOT, Deployment
from tests.waiting import eventually

pytestmark = pytest.mark.any_database


def test_agent_asleep_in_a_suspension_has_no_process_and_goes_on_once(deployment: Deployment) -> None:
    deployment.env |= {"KANDEV_IDLE_SLEEP": "2", "KANDEV_CONTINUE_AT_RESET": "1"}
    deployment.serve()
    command = [sys.executable, "-m", "tests.support.faulty_agent", "--behaviour", "reaches_limit", "--seconds", "20"]
    session = deployment.start_session("remember heron", {"command": command, "env": {"PYTHONPATH": str(ROOT)}})
    eventually(lambda: session.status()["suspension"], timeout=60, describe="the session is suspended")
    eventually(lambda: session.status()["asleep"], timeout=60, describe="its agent is asleep")
    eventually(lambda: not session.processes(), describe="no process of the session runs")
    assert session.status()["suspension"]["continuation"] == "continue"
    deployment.kill_server()
    deployment.serve()
    assert session.status()["asleep"], "a restart does not wake it"
    assert not session.processes()

    eventually(lambda: session.names().count("session.run.completed") == 1, timeout=120, describe="it has gone on")
    assert session.status()["suspension"] is None
    assert [row["state"] for row in session.prompts()] == ["done", "done"]
    assert session.prompts()[1]["message_id"].startswith("limit:")
    assert session.names().count("session.suspension.ended") == 1
    assert session.agent_log().count("A usage limit of yours was reached") <= 1

"""An idle agent is put to sleep to free its machine's memory; a prompt wakes it, and it remembers its conversation."""

from __future__ import annotations

import json

import pytest

from tests.drills.deployment import Deployment
from tests.waiting import eventually

pytestmark = pytest.mark.any_database


def test_idle_session_sleeps_through_a_restart_until_a_prompt_wakes_it(deployment: Deployment) -> None:
    deployment.env["KANDEV_IDLE_SLEEP"] = "3"
    deployment.serve()
    session = deployment.start_session("remember heron")
    eventually(lambda: session.status()["asleep"], timeout=60, describe="the session is asleep")
    eventually(lambda: not session.processes(), describe="no process of the session runs")
    status = session.status()
    assert (status["state"], status["desired_state"], status["executor_status"]) == (
        "WAITING_FOR_INPUT",
        "running",
        "stopped",
    )
    recorded = next(event for event in session.events() if event["name"] == "session.asleep")
    assert recorded["payload"]["after"] == 3
    deployment.kill_server()
    deployment.env["KANDEV_IDLE_SLEEP"] = "3600"
    deployment.serve()
    assert session.status()["asleep"], "the session is still asleep"
    session.prompt("what was the word?")
    eventually(
        lambda: session.agent_log().count("heron") == 2, timeout=60, describe="the agent is awake and knows the word"
    )
    assert not session.status()["asleep"]
    assert json.dumps(session.names()).count("session.asleep") == 1

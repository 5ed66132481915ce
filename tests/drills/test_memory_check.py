"""The optional check of an agent's memory, from the kill to the receipt, with real processes."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.drills.deployment import ROOT, Deployment
from tests.drills.session_steps import wait_for_first_turn
from tests.waiting import eventually

pytestmark = pytest.mark.any_database


def agent(behaviour: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.support.faulty_agent", "--behaviour", behaviour]
    values = {"agent_type": "custom_acp", "memory_check": True}
    return {**values, "command": command, "env": {"PYTHONPATH": str(ROOT)}}


@pytest.mark.parametrize(("behaviour", "verified"), [("loads_without_replay", "quoted"), ("forgets", "unproven")])
def test_agent_that_replays_nothing_gets_a_memory_check(deployment: Deployment, behaviour: str, verified: str) -> None:
    deployment.serve()
    session = deployment.start_session("remember heron", agent(behaviour))
    wait_for_first_turn(session)
    session.kill_everything()
    eventually(
        lambda: session.names().count("session.run.completed") == 2, timeout=90, describe="two turns have completed"
    )
    receipt = session.receipts()[-1]
    assert (receipt["kind"], receipt["verified"]) == ("loaded", verified)
    assert ("memory_check" in receipt["evidence"]) is (verified == "unproven")
    assert [row["kind"] for row in session.prompts()] == ["user", "check"]

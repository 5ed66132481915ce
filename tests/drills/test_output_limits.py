"""An agent that writes more than is stored: real processes, and restarts in the middle of its turn."""

from __future__ import annotations

import pytest

from tests.drills import chatty_agent
from tests.drills.deployment import ROOT, Deployment
from tests.waiting import eventually

LIMIT = 200_000
UPDATES = 5_000


@pytest.mark.any_database
def test_limited_turn_ends_and_counts_what_is_missing_across_restarts(deployment: Deployment) -> None:
    deployment.env["KANDEV_TURN_OUTPUT_LIMIT"] = str(LIMIT)
    profile = {"agent_type": "custom_acp", "command": chatty_agent.command(), "env": {"PYTHONPATH": str(ROOT)}}
    deployment.serve()
    session = deployment.start_session(f"chatter {UPDATES}", profile)
    session.wait_for("RUNNING")
    (session.agent_home / chatty_agent.GO).touch()
    eventually(lambda: "session.output.limited" in session.names(), timeout=60, describe="the limit is reached")
    deployment.kill_server()
    deployment.serve()
    eventually(lambda: "session.run.completed" in session.names(), timeout=90, describe="the turn has ended")

    names = session.names()
    assert names.count("session.output.limited") == names.count("session.output.left_out") == 1
    assert names.index("session.output.left_out") < names.index("session.run.completed")
    assert {"session.journal_gap", "session.journal_skipped"}.isdisjoint(names)
    messages = chatty_agent.messages_from_events((event["name"], event["payload"]) for event in session.events())
    stored_text = "".join(str(message) for message in messages)
    assert len(stored_text) < 2 * LIMIT + 100_000
    assert session.status()["output_limit"] == "turn"
    assert session.status()["needs_attention"]
    assert [row["state"] for row in session.prompts()] == ["done"]

    deployment.api("POST", f"{session.path}/more-output/")
    assert session.status()["output_limit"] == ""

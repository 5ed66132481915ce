"""Drill B with published agents and a loopback model: killed in mid-turn, resumed, and the memory is still theirs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.drills.deployment import Deployment
from tests.real_agents.homes import REAL_AGENTS, real_agent
from tests.real_agents.model_server import running_model
from tests.waiting import eventually

AGENT_TYPES = {"codex-acp": "codex", "opencode": "opencode"}


@pytest.mark.real_agent
@pytest.mark.parametrize("name", sorted(REAL_AGENTS))
def test_drill_b_a_published_agent_that_was_killed_in_mid_turn_still_knows(
    name: str, deployment: Deployment, tmp_path: Path
) -> None:
    deployment.env["KANDEV_CONTINUE"] = "off"
    with running_model() as model:
        agent = real_agent(name, tmp_path / "home", model.url)
        deployment.serve()
        profile = {"agent_type": AGENT_TYPES[name], "command": list(agent.argv), "env": dict(agent.env)}
        session = deployment.start_session("remember the word walrus, answer ok", profile)
        eventually(lambda: "session.run.completed" in session.names(), timeout=90, describe="the first turn is over")
        session.prompt("HOLD on")
        eventually(lambda: model.holding, timeout=60, describe="the agent is in mid-turn")
        eventually(lambda: session.prompts()[-1]["state"] == "delivered", describe="the ledger says so")
        deployment.kill_server()
        session.kill_everything()
        model.release()

        document = deployment.recover()

        row = document["sessions"][0]
        assert row["receipt_kind"] in ("loaded", "resumed"), document
        assert row["session_state"] == "WAITING_FOR_INPUT"
        assert [one["state"] for one in session.prompts()] == ["done", "interrupted"]
        assert session.names().count("session.run.interrupted") == 1
        assert len(re.findall("HOLD", " ".join(model.user_texts))) == 1, "the prompt was sent again"
        deployment.serve()
        before = session.agent_text()
        session.prompt("what was the word?")
        eventually(lambda: "walrus" in session.agent_text()[len(before) :], timeout=60, describe="it remembers")

"""A published agent whose provider is overloaded: its turn is retried, also after a restart, until it succeeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drills.deployment import Deployment
from tests.real_agents.homes import real_agent
from tests.real_agents.model_server import running_model
from tests.waiting import eventually

PROMPT = "BUSY day, answer ok"


@pytest.mark.real_agent
def test_turn_failed_by_an_overloaded_provider_is_retried_across_restarts(
    deployment: Deployment, tmp_path: Path
) -> None:
    with running_model() as model:
        agent = real_agent("codex-acp", tmp_path / "home", model.url)
        deployment.serve()
        profile = {"agent_type": "codex", "command": list(agent.argv), "env": dict(agent.env)}
        session = deployment.start_session(PROMPT, profile)
        eventually(lambda: "session.run.retrying" in session.names(), timeout=180, describe="a retry is scheduled")
        recorded = next(event for event in session.events() if event["name"] == "session.run.retrying")["payload"]
        assert (recorded["attempt"], recorded["of"], recorded["error_code"]) == (1, 5, "provider_overloaded"), recorded
        deployment.kill_server()
        model.release()
        deployment.serve()
        eventually(lambda: "session.run.completed" in session.names(), timeout=180, describe="the turn has completed")

        rows = session.prompts()
        assert [row["state"] for row in rows] == ["done"] * len(rows)
        assert [row["resent_as_id"] for row in rows] == [row["id"] for row in rows[1:]] + [None], (
            "each prompt is retried once"
        )
        assert {(row["kind"], row["text"]) for row in rows[1:]} == {("retry", PROMPT)}
        assert session.names().count("session.run.failed") == len(rows) - 1
        assert session.status()["retry"] is None
        assert session.agent_text().endswith("ok")

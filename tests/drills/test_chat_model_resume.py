"""Drill B with a stateless model API: agentctl keeps the conversation, and the receipt proves it."""

from __future__ import annotations

from typing import Final

import pytest

from tests.drills.deployment import Deployment
from tests.drills.session_steps import wait_for_first_turn
from tests.real_agents.model_server import running_model
from tests.waiting import eventually

pytestmark = pytest.mark.any_database

KEY: Final = "sk-this-is-nobodys-business"


def test_drill_b_chat_killed_in_mid_answer_keeps_its_conversation(deployment: Deployment) -> None:
    deployment.env["KANDEV_CONTINUE"] = "off"
    with running_model() as model:
        deployment.serve()
        env = {"OPENAI_BASE_URL": model.url, "OPENAI_API_KEY": KEY}
        profile = {"agent_type": "openai_chat", "model": "mock", "env": env}
        session = deployment.start_session("remember the word walrus, answer ok", profile)
        wait_for_first_turn(session)
        session.prompt("HOLD on")
        eventually(lambda: model.holding, describe="the model holds the request")
        eventually(lambda: session.prompts()[-1]["state"] == "delivered", describe="the prompt is delivered")
        deployment.kill_server()
        session.kill_everything()
        model.release()

        document = deployment.recover()

        assert document["sessions"][0]["receipt_kind"] == "loaded", document
        assert [one["state"] for one in session.prompts()] == ["done", "interrupted"]
        assert session.receipts()[-1]["verified"] == "replay"
        deployment.serve()
        before = session.agent_text()
        session.prompt("what was the word?")
        eventually(
            lambda: "walrus" in session.agent_text()[len(before) :], timeout=60, describe="the agent knows the word"
        )
        assert sum("HOLD" in text for text in model.user_texts) == 2, "seen as a prompt and in the conversation"
    written = [path for path in deployment.home.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    assert not written, "the key is stored in clear text"

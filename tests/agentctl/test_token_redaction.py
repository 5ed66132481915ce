"""The conversation id is a credential: agentctl redacts it in everything that it writes or returns."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from executors_app.wire.errors import AgentctlRefused
from executors_app.wire.token_redaction import TokenRedactor, token_fingerprint
from tests.agentctl.processes import REAL, ROOT, Place
from tests.agents.scripts import Script, agent, error, result
from tests.waiting import eventually_async

TOKEN = "0195f3a2-conversation-secret"


def test_token_is_replaced_by_its_fingerprint_everywhere() -> None:
    discretion = TokenRedactor()
    discretion.add_token(TOKEN)
    discretion.add_token(f"{TOKEN}-longer")
    name, longer = (
        f"[conversation {token_fingerprint(TOKEN)}]",
        f"[conversation {token_fingerprint(TOKEN + '-longer')}]",
    )
    assert discretion.redact({"a": [f"x{TOKEN}y", 5, None], TOKEN: (f"{TOKEN}-longer",)}) == {
        "a": [f"x{name}y", 5, None],
        name: [longer],
    }


@pytest.mark.parametrize("token", ["", None, "abc"])
def test_short_words_are_not_redacted(token: str | None) -> None:
    discretion = TokenRedactor()
    discretion.add_token(token)
    assert discretion.redact("abc and nothing else") == "abc and nothing else"


def _body(place: Place, script: Script, **more: Any) -> dict[str, Any]:
    path = place.base / "script.json"
    path.write_text(json.dumps(script))
    argv = [sys.executable, str(ROOT / "tests/agents/scripted_agent.py"), str(path)]
    return {"launch_id": "launch-1", "argv": argv, "cwd": str(place.workspace), "driver": "acp", **more}


def _written(place: Place) -> str:
    return "".join(path.read_text() for path in (place.state_dir / "journal").iterdir())


STRANGE = json.dumps({"jsonrpc": "2.0", "method": "_vendor/thing", "params": {"sessionId": TOKEN, "about": TOKEN}})
NEWS = json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "another-id", "update": {}}})


async def test_agent_text_with_the_conversation_id_is_redacted_in_the_journal(tmp_path: Path) -> None:
    place = Place(tmp_path)
    script = agent(session_new=[STRANGE, result({"sessionId": TOKEN})])
    script["session/prompt"] = [[STRANGE, NEWS, error(-32603, f"session {TOKEN} is full")]]
    with place.agentctl(REAL):
        client = place.client()
        assert (await client.start_agent(_body(place, script), 30))["resume_token"] == TOKEN
        await client.prompt("m1", "go on")
        await eventually_async(lambda: "turn.failed" in place.kinds())
        failed = next(line for line in place.lines() if line["kind"] == "turn.failed")
    assert failed["message"] == f"session [conversation {token_fingerprint(TOKEN)}] is full"
    assert "_vendor/thing" in _written(place)
    assert TOKEN not in _written(place)
    assert "another-id" not in _written(place)


@pytest.mark.parametrize("patterns", [["is gone"], []])
async def test_error_that_quotes_the_token_is_redacted(tmp_path: Path, patterns: list[str]) -> None:
    place = Place(tmp_path)
    script = agent(load=True, session_load=[error(-32002, f"conversation {TOKEN} is gone", {"sessionId": TOKEN})])
    native = {"strategy": "native", "resume_token": TOKEN, "gone_patterns": patterns}
    with place.agentctl(REAL):
        client = place.client()
        for _ in range(2):  # the second response comes from agentctl's memory
            with pytest.raises(AgentctlRefused) as refused:
                await client.start_agent(_body(place, script, **native), 30)
            text = f"{refused.value} {refused.value.details}"
            assert f"[conversation {token_fingerprint(TOKEN)}]" in text
            assert TOKEN not in text
        assert (await client.agent_session())["resume_token"] is None
    assert TOKEN not in _written(place)

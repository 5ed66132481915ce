"""Errors that an agent reports as text."""

from __future__ import annotations

from typing import Any

import pytest

from executors_app.agentctl.drivers.events import error_in_text

CODEX = "@agentclientprotocol/codex-acp"
OVERLOADED = "unexpected status 503 Service Unavailable: overloaded, url: http://127.0.0.1:1/v1/responses"


def said(text: Any, kind: str = "agent_message_chunk") -> dict[str, Any]:
    return {"sessionUpdate": kind, "content": {"type": "text", "text": text}}


@pytest.mark.parametrize(
    ("agent", "update", "error"),
    [
        pytest.param(CODEX, said(f"{OVERLOADED}\n\n"), OVERLOADED, id="error"),
        pytest.param(CODEX, said(f"It says: {OVERLOADED}\n\n"), "", id="error in the middle of a text"),
        pytest.param(CODEX, said(OVERLOADED), "", id="piece of a text"),
        pytest.param(CODEX, said(f"{OVERLOADED}\n\n", "agent_thought_chunk"), "", id="thought"),
        pytest.param(CODEX, said("All tests pass.\n\n"), "", id="answer"),
        pytest.param(CODEX, said(None), "", id="no text"),
        pytest.param(CODEX, {"sessionUpdate": "agent_message_chunk", "content": "text"}, "", id="malformed"),
        pytest.param("another agent", said(f"{OVERLOADED}\n\n"), "", id="agent that reports errors as such"),
    ],
)
def test_only_a_whole_error_of_an_agent_known_for_it_counts(agent: str, update: dict[str, Any], error: str) -> None:
    assert error_in_text(agent, update) == error

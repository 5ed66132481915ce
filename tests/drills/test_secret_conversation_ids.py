"""The id of an agent's conversation is a credential: after a full session life it appears nowhere in plain text."""

from __future__ import annotations

import json
import urllib.parse

import pytest

from executors_app.wire.token_redaction import token_fingerprint
from tests.drills import session_data_locations
from tests.drills.deployment import Deployment, Session
from tests.waiting import eventually

pytestmark = pytest.mark.any_database

KEPT_BY_AGENTCTL = ("token.json", "memory.jsonl")
"""Files in which agentctl must keep the id, with mode 0600, to survive its own restart."""


def _token(session: Session) -> str:
    path = session.deployment.agentctls / session.execution_id / "token.json"
    return str(json.loads(path.read_text())["resume_token"])


def _turn(session: Session, text: str) -> None:
    session.prompt(text)
    prompts = len(session.prompts())  # the turn of an earlier one may still be on its way into the log
    eventually(
        lambda: session.names().count("session.run.completed") == prompts,
        timeout=60,
        describe=f"the turn of {text!r} has completed",
    )


def _receipt(session: Session, count: int) -> tuple[str, str]:
    eventually(lambda: len(session.receipts()) >= count, timeout=60, describe=f"there are {count} receipts")
    last = session.receipts()[-1]
    return str(last["kind"]), str(last["reason"])


def _live(session: Session) -> set[str]:
    """Take a session through every way in which its agent can end and continue; return its conversation ids."""
    _turn(session, "remember heron\nwrite kept.txt hello")
    first = _token(session)
    session.kill_everything()
    assert _receipt(session, 2)[0] == "loaded"
    _turn(session, "what was the word?")
    for conversation in session.agent_home.glob("*.jsonl"):
        conversation.unlink()
    session.kill_everything()
    assert _receipt(session, 3) == ("failed", "token_rejected")
    assert token_fingerprint(first) in session.status()["error_message"]
    session.deployment.api("POST", f"{session.path}/resume/", {"mode": "resume"})
    assert _receipt(session, 4) == ("failed", "token_rejected")
    session.deployment.api("POST", f"{session.path}/resume/", {"mode": "fresh_start"})
    assert _receipt(session, 5)[0] == "fresh"
    _turn(session, "remember stork")
    return {first, _token(session)}


def test_conversation_id_appears_nowhere_in_plain_text(deployment: Deployment) -> None:
    deployment.serve()
    session = deployment.start_session("hello")
    session.wait_for("WAITING_FOR_INPUT")
    tokens = _live(session)
    assert len(tokens) == 2
    record = deployment.data / "sessions" / f"{session.id}.messages.jsonl"
    eventually(
        lambda: record.exists() and "stork" in record.read_text(),
        describe="the portable record contains the answer",
    )
    texts = session_data_locations.texts_of(session)
    deployment.kill_server()
    files = list(session_data_locations.files(deployment, KEPT_BY_AGENTCTL))
    assert {"serve.log", record.name} <= {path.name for path, _ in files}
    assert any(path.parent.name == "journal" for path, _ in files)
    for token in tokens:
        forms = (token, urllib.parse.quote(token, safe=""), token.encode().hex())
        assert [place for place, text in texts.items() if any(form in text for form in forms)] == []
        assert [path for path, content in files if any(form.encode() in content for form in forms)] == []
        assert token_fingerprint(token) in texts["answers"]
    for name in KEPT_BY_AGENTCTL:
        assert (deployment.agentctls / session.execution_id / name).stat().st_mode & 0o077 == 0

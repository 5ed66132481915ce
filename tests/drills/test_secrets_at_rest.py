"""Credentials appear in plain text only where their owner keeps them, whatever happens to a session."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from tests.drills import session_data_locations
from tests.drills.deployment import Deployment, Session
from tests.waiting import eventually

pytestmark = pytest.mark.any_database

SECRET_KEY, AGENTCTLS_TOKEN = "secret-key", "token"
"""Files that keep the secrets, readable only by their owner."""
MCP_SERVER = {"type": "http", "name": "tools", "url": "http://127.0.0.1:9/mcp"}


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret and the only places where it may appear."""

    text: str
    places: frozenset[str] = frozenset()
    file: str = ""


def _secrets(session: Session, key: str, header: str) -> Mapping[str, Secret]:
    deployment = session.deployment
    token = (deployment.agentctls / session.execution_id / AGENTCTLS_TOKEN).read_text().strip()
    return {
        "the agent's key": Secret(key, places=frozenset({"environments"})),
        "the header for its MCP server": Secret(header),
        "agentctl's token": Secret(token, file=AGENTCTLS_TOKEN),
        "the encryption key": Secret((deployment.data / SECRET_KEY).read_text().strip(), file=SECRET_KEY),
        "a user's API key": Secret(str(deployment.seeded["token"])),
    }


def _has_answered(session: Session, times: int) -> None:
    turns = f"{times} turns are over"
    eventually(lambda: session.names().count("session.run.completed") == times, timeout=60, describe=turns)


def test_no_secret_is_readable_after_a_crash_and_failed_start(deployment: Deployment) -> None:
    key, header = f"sk-drill-{uuid.uuid4().hex}", uuid.uuid4().hex
    deployment.serve()
    mcp = {**MCP_SERVER, "headers": [{"name": "Authorization", "value": f"Bearer {header}"}]}
    session = deployment.start_session("remember heron", {"env": {"DRILL_API_KEY": key}, "mcp_servers": [mcp]})
    _has_answered(session, 1)
    session.kill_everything()
    eventually(lambda: len(session.receipts()) >= 2, timeout=60, describe="the session is resumed")
    broken = deployment.start_session("hello", {"env": {"DRILL_API_KEY": key}, "command": ["/no/such/agent"]})
    broken.wait_for("ERROR", timeout=60)
    session.prompt("what was the word?")
    _has_answered(session, 2)

    secrets, texts = _secrets(session, key, header), session_data_locations.texts_of(session)
    deployment.kill_server()
    files = list(session_data_locations.files(deployment, ()))
    for name, secret in secrets.items():
        assert len(secret.text) >= 32, name
        assert {place for place, text in texts.items() if secret.text in text} <= secret.places, name
        found = {path.name for path, content in files if secret.text.encode() in content}
        assert found == ({secret.file} if secret.file else set()), name
    for path, _ in files:
        if path.name in (SECRET_KEY, AGENTCTLS_TOKEN):
            assert path.stat().st_mode & 0o077 == 0, path

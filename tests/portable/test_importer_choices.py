"""An import restores the settings that users chose, and names the MCP servers that are missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sessions_app.models import AgentSettings, McpServerList
from tests.portable.records import delete_everything, delete_sessions, export, run_import, session_with_history

pytestmark = pytest.mark.django_db


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "sessions"


def test_chosen_settings_are_applied_at_the_first_start(folder: Path) -> None:
    session = session_with_history()
    row = AgentSettings(session=session)
    for setting, state, fields in (("mode", "applied", {"value": "plan"}), ("fast", "waiting", {})):
        value = fields.get("value", True)
        row.choose(setting, change={"id": setting, "value": value, "state": state, "at": "2026-01-01"}, **fields)
    row.save()
    export(session, folder)
    delete_sessions()

    assert run_import(folder) == 0

    back = AgentSettings.objects.get(session_id=session.id).changes_to_start_with()
    assert [(each["setting"], each["value"]) for each in back] == [("mode", "plan"), ("fast", True)]
    assert [each["change_id"].startswith("kept-") for each in back] == [True, False]


def test_invalid_settings_are_left_out(folder: Path) -> None:
    session = session_with_history()
    export(session, folder)
    path = folder / f"{session.id}.json"
    stored = [{"setting": 1, "value": "a"}, {"setting": "mode", "value": {}}, {"setting": "x" * 300, "value": True}]
    path.write_text(json.dumps({**json.loads(path.read_text()), "chosen_settings": [*stored, None]}))
    delete_sessions()
    assert run_import(folder) == 0
    assert not AgentSettings.objects.exists()


def test_mcp_servers_are_named_and_never_added(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session = session_with_history()
    McpServerList.objects.create(team=session.task.team, servers=[{"name": "docs", "command": "docs"}])
    export(session, folder)
    delete_everything()

    assert run_import(folder) == 0

    assert "MCP servers “docs” of the team were not added" in capsys.readouterr().out
    assert not McpServerList.objects.exists()

"""A permission request that names its tool call by id alone shows all that is known about that call."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from executors_app.agentctl.drivers import acp
from executors_app.wire.protocol import JournalKind
from sessions_app.kernel.services.errors import TokenRevoked
from sessions_app.models import Prompt, TaskSession, WaitKey
from sessions_app.notifications.delivery import render_email
from sessions_app.permissions.services import answer_permission, permission_keys
from sessions_app.permissions.views.request_cards import request_cards
from tests.agentctl.running import agentctl
from tests.attention.reading import as_read
from tests.supervisor.journals import Journal, Line, ingest
from tests.supervisor.rows import running_session

pytestmark = pytest.mark.django_db

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = [{"option_id": "yes", "name": "Yes", "kind": "allow_once"}]
TOOL_CALL = {
    "title": "Delete the build",
    "tool_kind": "execute",
    "raw_input": {"command": "rm -rf build"},
    "locations": [{"path": "build"}],
}


def lines_of_a_real_agent(directory: Path) -> list[Line]:
    """Return the journal of a real agentctl whose agent has asked for permission."""

    async def ask() -> list[Line]:
        argv = [sys.executable, "-m", "tests.support.faulty_agent", "--behaviour", "asks_by_id"]
        async with agentctl(directory, drivers={"acp": acp.create}) as place:
            env = {"PYTHONPATH": str(ROOT), "KANDEV_DEMO_AGENT_HOME": str(directory)}
            await place.start(driver="acp", argv=argv, env=env)
            await place.prompt("clean up", message_id="p1")
            await place.line("permission.requested")  # it becomes pending before its line is in the journal's file
            lines = place.lines()
            await place.post("/agent/stop", grace=1, intent_id="i")
            return lines

    return asyncio.run(ask())


def waiting_session() -> TaskSession:
    session = running_session()
    Prompt.objects.create(session=session, message_id="p1", text="go on", state="sending")
    return session


def permission(journal: Journal, **tool_call: Any) -> Line:
    call = {"tool_call_id": "call-1", **tool_call}
    return journal.line(JournalKind.PERMISSION_REQUESTED, permission_id="q1", tool_call=call, options=OPTIONS)


def requested_tool_call(session: TaskSession) -> dict[str, Any]:
    """Return the tool call stored in the row, without its id."""
    call = dict(session.permissions.get().tool_call)
    assert call.pop("tool_call_id") == "call-1"
    return call


def test_row_card_inbox_and_email_show_the_tool_call(tmp_path: Path) -> None:
    session = waiting_session()
    ingest(session, lines_of_a_real_agent(tmp_path))

    assert requested_tool_call(session) == TOOL_CALL
    event = session.events.get(name="session.permission.requested")
    assert event.payload["tool_call"] == session.permissions.get().tool_call
    [card] = request_cards(session)
    assert (card["title"], card["verb"], card["call"]["places"]) == ("Delete the build", "wants to run", ["build"])
    assert "rm -rf build" in card["call"]["input"]
    item = session.attention.get(kind="permission")
    for words in ("asks to run", "Delete the build", "Command: rm -rf build", "Files: build"):
        assert words in as_read(item).why
        assert words in render_email([item])["text"]


def test_call_may_come_from_an_earlier_batch() -> None:
    session, journal = waiting_session(), Journal()
    ingest(session, [*journal.turn_begins("p1"), journal.tool("call-1", **TOOL_CALL)], lease=None)
    ingest(session, [permission(journal)], lease=None)
    assert requested_tool_call(session) == TOOL_CALL


def test_fields_of_the_request_take_precedence() -> None:
    session, journal = waiting_session(), Journal()
    lines = [*journal.turn_begins("p1"), journal.tool("call-1", **TOOL_CALL), permission(journal, title="Delete all")]
    ingest(session, lines)
    assert requested_tool_call(session) == {**TOOL_CALL, "title": "Delete all"}


def test_later_updates_of_the_call_complete_the_request() -> None:
    session, journal = waiting_session(), Journal()
    ingest(session, [*journal.turn_begins("p1"), permission(journal)], lease=None)
    assert session.attention.get(kind="permission").why == "The agent does not say what it wants to do."
    ingest(session, [journal.tool("call-1", **TOOL_CALL), journal.tool("call-2", title="Another")], lease=None)
    assert requested_tool_call(session) == TOOL_CALL
    assert "Delete the build" in as_read(session.attention.get(kind="permission")).why


def _key(session: TaskSession) -> str:
    secret = permission_keys(session.permissions.all())["q1"].secret()
    assert secret is not None
    return secret


@pytest.mark.parametrize("together", [True, False], ids=["one batch", "two batches"])
def test_changed_call_is_shown_and_the_key_of_the_earlier_one_is_refused(together: bool) -> None:
    session, journal = waiting_session(), Journal()
    begin = [*journal.turn_begins("p1"), journal.tool("call-1", **TOOL_CALL), permission(journal)]
    ingest(session, begin, lease=None)
    user = User.objects.create_user("reader")
    earlier = _key(session)
    changes: list[dict[str, Any]] = [{"raw_input": {"command": "rm -rf /"}}, {"title": "Delete everything"}]
    lines = [journal.line(JournalKind.TOOL_UPDATE, tool_call_id="call-1", **change) for change in changes]
    for batch in [lines] if together else [[line] for line in lines]:
        ingest(session, batch, lease=None)

    shown = {**TOOL_CALL, "title": "Delete everything", "raw_input": {"command": "rm -rf /"}}
    assert requested_tool_call(session) == shown
    with pytest.raises(TokenRevoked, match="changed this action"):
        answer_permission(session.id, "q1", "yes", earlier, user)
    answer_permission(session.id, "q1", "yes", _key(session), user)
    assert session.intents.get(kind="answer").payload["option_id"] == "yes"
    assert WaitKey.objects.filter(session=session).count() == (2 if together else 3)


def test_unchanged_call_keeps_its_key() -> None:
    session, journal = waiting_session(), Journal()
    begin = [*journal.turn_begins("p1"), journal.tool("call-1", **TOOL_CALL), permission(journal)]
    ingest(session, begin, lease=None)
    again = journal.line(JournalKind.TOOL_UPDATE, tool_call_id="call-1", status="pending", **TOOL_CALL)
    ingest(session, [again], lease=None)
    assert WaitKey.objects.filter(session=session).count() == 1

"""Texts, tool calls and permission requests of a sub-agent are shown as its own."""

from __future__ import annotations

import pytest

from executors_app.wire.protocol import JournalKind
from sessions_app.models import TaskSession, texts_of
from sessions_app.permissions.views.request_cards import request_cards
from tests.attention.reading import as_read
from tests.stream.test_tool_calls_of_turns import OPTIONS, cards, session_with_prompts
from tests.supervisor.journals import Journal, ingest

pytestmark = pytest.mark.django_db

NAME = "Sub-agent 1"


def messages(session: TaskSession) -> list[tuple[str, str, str]]:
    rows = list(session.messages.exclude(role="user").order_by("seq"))
    texts = texts_of(rows)
    return [(row.role, row.payload.get("sub_agent", ""), texts[row.id]) for row in rows]


def test_text_of_a_sub_agent_is_apart_from_the_agents_answer() -> None:
    session, journal = session_with_prompts("p1"), Journal()
    lines = [
        *journal.turn_begins("p1"),
        *journal.says("I ask a helper. "),
        journal.line(JournalKind.MESSAGE_SUB_AGENT, text="work", sub_agent=NAME),
        journal.line(JournalKind.MESSAGE_SUB_AGENT, text="ing", sub_agent=NAME),
        journal.line(JournalKind.MESSAGE_SUB_AGENT, text="me too", sub_agent="Sub-agent 2"),
        *journal.says("It is done."),
        journal.completes("p1"),
    ]
    for line in lines:
        ingest(session, [line], lease=None)
    assert messages(session) == [
        ("agent", "", "I ask a helper. "),
        ("status", NAME, "working"),
        ("status", "Sub-agent 2", "me too"),
        ("agent", "", "It is done."),
    ]
    assert not session.messages.filter(complete=False).exists()


def test_permission_of_a_sub_agent_shows_its_own_tool_call() -> None:
    session, journal = session_with_prompts("p1"), Journal()
    request = {"tool_call_id": "c1", "sub_agent": NAME}
    lines = [
        *journal.turn_begins("p1"),
        journal.tool("c1", title="ls"),
        journal.tool("c1", title="rm -rf build", sub_agent=NAME),
        journal.line(JournalKind.PERMISSION_REQUESTED, permission_id="q1", tool_call=request, options=OPTIONS),
    ]
    ingest(session, lines, lease=None)
    assert [title for title, _ in cards(session)] == ["ls", "rm -rf build"]
    [card] = request_cards(session)
    assert (card["title"], card["call"]["sub_agent"]) == ("rm -rf build", NAME)
    assert NAME in as_read(session.attention.get(kind="permission")).why


def test_text_that_the_log_has_already_is_not_recorded_again() -> None:
    session, journal = session_with_prompts("p1"), Journal()
    answer = "The parser is written, and its tests pass now."
    lines = [
        *journal.turn_begins("p1"),
        journal.tool("c1", title="make"),
        *journal.says(answer),
        journal.completes("p1"),
        journal.line(JournalKind.MESSAGE_AGENT, text=answer, may_be_replayed=True),
        journal.line(JournalKind.TOOL_CALL, tool_call_id="c1", title="make", may_be_replayed=True),
        journal.line(JournalKind.MESSAGE_AGENT, text="A background build failed.", may_be_replayed=True),
    ]
    for line in lines:
        ingest(session, [line], lease=None)
    texts = [text for role, _, text in messages(session) if role == "agent"]
    assert texts == [answer, "A background build failed."]
    assert len(cards(session)) == 1

"""The tool calls without a result are limited, so that the end of a turn closes a limited number of them."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from sessions_app.models import TaskSession
from sessions_app.stream import conversation as conversations
from sessions_app.stream.conversation import MAX_OPEN_TOOLS
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.rows import conversation, running_session

pytestmark = pytest.mark.django_db(transaction=True)


def begun() -> tuple[TaskSession, Journal]:
    session, journal = running_session(), Journal()
    ingest(session, journal.turn_begins("m1"))
    return session, journal


def with_open_calls(number: int) -> tuple[TaskSession, Journal]:
    session, journal = begun()
    for first in range(0, number, 100):
        ingest(session, [journal.tool(f"call {at}", title="x") for at in range(first, min(first + 100, number))])
    return session, journal


def statuses(session: TaskSession) -> dict[str, str]:
    tools = session.messages.filter(role="tool").order_by("seq")
    return {tool.key: tool.payload["status"] for tool in tools}


def open_calls(session: TaskSession) -> list[str]:
    return list(session.messages.filter(role="tool", complete=False).order_by("seq").values_list("key", flat=True))


def notes(session: TaskSession) -> list[tuple[str, bool]]:
    return [(text, complete) for role, text, _, complete in conversation(session) if role == "status"]


def test_oldest_calls_beyond_the_limit_are_closed_and_people_are_informed_once() -> None:
    session, journal = with_open_calls(MAX_OPEN_TOOLS + 250)
    assert open_calls(session) == [f"call {number}" for number in range(250, MAX_OPEN_TOOLS + 250)]
    assert list(statuses(session).values())[:250] == ["unfinished"] * 250
    [(note, complete)] = notes(session)
    assert f"more than {MAX_OPEN_TOOLS} tool calls without a result" in note
    assert not complete
    ingest(session, [journal.completes("m1")])
    assert open_calls(session) == []
    assert notes(session) == [(note, True)]


def test_call_that_was_closed_early_still_gets_its_result() -> None:
    session, journal = with_open_calls(MAX_OPEN_TOOLS + 10)
    ingest(session, [journal.line("tool.update", tool_call_id="call 3", status="completed", raw_output="done")])
    [tool] = session.messages.filter(role="tool", key="call 3")
    assert (tool.payload["status"], tool.payload["raw_output"], tool.complete) == ("completed", "done", True)


def test_calls_in_one_batch_are_limited_too() -> None:
    session, journal = begun()
    ingest(session, [journal.tool(f"call {number}") for number in range(MAX_OPEN_TOOLS + 20)])
    assert len(open_calls(session)) == MAX_OPEN_TOOLS


def test_open_calls_have_a_limited_size_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "MAX_OPEN_TOOL_BYTES", 700_000)
    session, journal = begun()
    for name in ("a", "b", "c"):
        ingest(session, [journal.tool(name, raw_input="x" * 300_000)])
    assert statuses(session) == {"a": "unfinished", "b": "in_progress", "c": "in_progress"}
    ingest(session, [journal.tool("d", raw_input="x" * 900_000)])
    assert open_calls(session) == ["d"]


def test_title_in_the_list_of_open_calls_is_shortened() -> None:
    session, journal = begun()
    ingest(session, [journal.tool("call", title="x" * 10_000), journal.exits("m1")])
    event: Any = session.events.get(name="session.run.interrupted")
    assert event.payload["unfinished_tools"] == ["x" * 500]


def test_usual_turn_does_not_look_for_open_calls() -> None:
    assert len(lookups(10)) == 0
    assert len(lookups(MAX_OPEN_TOOLS + 10)) == 1


def lookups(number: int) -> list[str]:
    """Return the queries for the sizes of the open calls that one more call causes."""
    session, journal = with_open_calls(number)
    with CaptureQueriesContext(connection) as queries:
        ingest(session, [journal.tool("another")])
    return [query["sql"] for query in queries if query["sql"].startswith("SELECT") and "LENGTH(" in query["sql"]]

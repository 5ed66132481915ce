"""Agents count their tool calls per turn, so the id of a call names it within its turn only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from executors_app.wire.protocol import JournalKind
from sessions_app.models import Prompt, TaskSession
from sessions_app.stream.rules.tool_calls import KEY_LIMIT, key_of_tool
from sessions_app.waits import services as waits
from tests.supervisor.journals import Journal, Line, ingest
from tests.supervisor.rows import make_user, running_session

pytestmark = pytest.mark.django_db

OPTIONS = [{"option_id": "yes", "name": "Yes", "kind": "allow_once"}]
OVERLOADED = "529 overloaded_error: Overloaded"


def session_with_prompts(*names: str) -> TaskSession:
    session = running_session()
    for name in names:
        Prompt.objects.create(session=session, message_id=name, text=f"text of {name}", state="sending")
    return session


def update(journal: Journal, tool_call_id: str, **values: Any) -> Line:
    return journal.line(JournalKind.TOOL_UPDATE, tool_call_id=tool_call_id, **values)


def tool_turn(journal: Journal, message_id: str, title: str) -> list[Line]:
    """Return a turn with one finished tool call, whose id is the same in each turn; its end is missing."""
    return [
        *journal.turn_begins(message_id),
        journal.tool("call_0", title=title),
        update(journal, "call_0", status="completed"),
    ]


def fails(journal: Journal, message_id: str) -> Line:
    return journal.line(JournalKind.TURN_FAILED, message_id=message_id, code="agent_error", message=OVERLOADED)


def cards(session: TaskSession) -> list[tuple[str, str]]:
    tools = session.messages.filter(role="tool").order_by("seq")
    return [(tool.payload.get("title", ""), tool.payload["status"]) for tool in tools]


@pytest.mark.parametrize("in_one_batch", [True, False])
@pytest.mark.parametrize("status", ["completed", "failed"])
def test_update_that_arrives_after_the_result_does_not_take_it_back(status: str, in_one_batch: bool) -> None:
    session, journal = session_with_prompts("p1"), Journal()
    lines = [
        *journal.turn_begins("p1"),
        journal.tool("call_0", title="build"),
        update(journal, "call_0", status=status, raw_output="done"),
        update(journal, "call_0", status="in_progress", title="make build"),
        journal.completes("p1"),
    ]
    for batch in [lines] if in_one_batch else [[line] for line in lines]:
        ingest(session, batch)
    assert cards(session) == [("make build", status)]


def test_result_is_kept_if_its_id_is_used_again_before_the_turn_ends() -> None:
    session, journal = session_with_prompts("p1"), Journal()
    ingest(session, [*journal.turn_begins("p1"), journal.tool("call_0", title="first")])
    ingest(
        session,
        [
            update(journal, "call_0", status="completed", raw_output="done"),
            journal.tool("call_0", title="second"),
            journal.completes("p1"),
        ],
    )
    assert cards(session) == [("first", "completed"), ("second", "unfinished")]
    first = session.messages.filter(role="tool").earliest("seq")
    assert first.payload["raw_output"] == "done"


@pytest.mark.parametrize("in_one_batch", [True, False])
def test_each_turn_has_its_own_card_for_a_reused_id(in_one_batch: bool) -> None:
    session, journal = session_with_prompts("p1", "p2"), Journal()
    lines = [
        *tool_turn(journal, "p1", "first"),
        journal.completes("p1"),
        *tool_turn(journal, "p2", "second"),
        journal.completes("p2"),
    ]
    for batch in [lines] if in_one_batch else [[line] for line in lines]:
        ingest(session, batch, lease=None)
    assert cards(session) == [("first", "completed"), ("second", "completed")]


def test_turn_begun_by_release_1_0_keeps_its_scope() -> None:
    session, journal = session_with_prompts("p1", "p2"), Journal()
    ingest(session, [*tool_turn(journal, "p1", "first"), journal.completes("p1"), *journal.turn_begins("p2")])
    session.runs.update(first_seq=None)
    ingest(session, [journal.tool("call_0", title="second")])
    ingest(session, [update(journal, "call_0", status="completed")])
    assert cards(session) == [("first", "completed"), ("second", "completed")]


def test_call_during_a_wait_is_not_one_of_the_turn_after_it() -> None:
    session, journal = running_session(), Journal()
    opened = waits.open_wait(session.id, "The build", None, make_user())
    ingest(session, [journal.tool("call_0", title="in the background", status="completed")])
    assert opened.resume_token is not None
    waits.resume_wait(opened.resume_token, "passed", "once")
    prompt = session.prompts.get()
    ingest(session, tool_turn(journal, prompt.message_id, "second"))
    assert cards(session) == [("in the background", "completed"), ("second", "completed")]
    turn = session.runs.get()
    assert turn.first_seq == session.messages.get(role="user").seq - 1


def test_prompt_is_not_sent_again_after_its_tool_with_a_reused_id() -> None:
    session, journal = session_with_prompts("p1", "p2"), Journal()
    ingest(session, [*tool_turn(journal, "p1", "first"), journal.completes("p1")], lease=None)
    ingest(session, tool_turn(journal, "p2", "second"), lease=None)
    ingest(session, [fails(journal, "p2")], lease=None)
    retry = session.prompts.get(kind="retry")
    assert retry.text != "text of p2"
    assert "text of p2" in retry.text


def updates_unknown_call(journal: Journal) -> list[Line]:
    return [update(journal, "call_1", status="completed")]


def updates_open_call_of_earlier_turn(journal: Journal) -> list[Line]:
    return [update(journal, "call_0", status="completed")]


def gets_permission(journal: Journal) -> list[Line]:
    call = {"tool_call_id": "call_9", "title": "pay"}
    return [
        journal.line(JournalKind.PERMISSION_REQUESTED, permission_id="q1", tool_call=call, options=OPTIONS),
        journal.line(JournalKind.PERMISSION_RESOLVED, permission_id="q1", option_id="yes"),
    ]


@pytest.mark.parametrize("sign", [updates_unknown_call, updates_open_call_of_earlier_turn, gets_permission])
@pytest.mark.parametrize("in_one_batch", [True, False])
def test_other_signs_of_a_tool_prevent_the_same_prompt_too(
    sign: Callable[[Journal], list[Line]], in_one_batch: bool
) -> None:
    session, journal = session_with_prompts("p1", "p2"), Journal()
    first = [*journal.turn_begins("p1"), journal.tool("call_0", title="first"), journal.completes("p1")]
    ingest(session, first, lease=None)
    lines = [*journal.turn_begins("p2"), *sign(journal), fails(journal, "p2")]
    for batch in [lines] if in_one_batch else [[line] for line in lines]:
        ingest(session, batch, lease=None)
    assert session.prompts.get(kind="retry").text != "text of p2"


def test_turn_without_tools_is_retried_with_its_own_prompt() -> None:
    session, journal = session_with_prompts("p1", "p2"), Journal()
    ingest(session, [*tool_turn(journal, "p1", "first"), journal.completes("p1")], lease=None)
    ingest(session, [*journal.turn_begins("p2"), fails(journal, "p2")], lease=None)
    assert session.prompts.get(kind="retry").text == "text of p2"


def test_permission_shows_no_details_of_an_earlier_turns_call() -> None:
    session, journal = session_with_prompts("p1", "p2"), Journal()
    ingest(session, [*tool_turn(journal, "p1", "harmless"), journal.completes("p1")], lease=None)
    request = {"tool_call_id": "call_0"}
    lines = [
        *journal.turn_begins("p2"),
        journal.line(JournalKind.PERMISSION_REQUESTED, permission_id="q1", tool_call=request, options=OPTIONS),
    ]
    ingest(session, lines, lease=None)
    assert "title" not in session.permissions.get().tool_call
    ingest(session, [journal.tool("call_0", title="rm -rf build")], lease=None)
    assert session.permissions.get().tool_call["title"] == "rm -rf build"


def test_late_result_closes_the_call_of_its_earlier_turn() -> None:
    session, journal = session_with_prompts("p1", "p2"), Journal()
    lines = [*journal.turn_begins("p1"), journal.tool("long-1", title="make all"), journal.completes("p1")]
    ingest(session, lines, lease=None)
    assert cards(session) == [("make all", "unfinished")]
    ingest(session, [*journal.turn_begins("p2"), update(journal, "long-1", status="completed")], lease=None)
    assert cards(session) == [("make all", "completed")]


def test_second_call_with_the_same_id_in_a_turn_has_its_own_card() -> None:
    session, journal = session_with_prompts("p1"), Journal()
    lines = [
        *tool_turn(journal, "p1", "first"),
        journal.tool("call_0", title="second"),
        update(journal, "call_0", status="failed"),
    ]
    for line in lines:
        ingest(session, [line], lease=None)
    assert cards(session) == [("first", "completed"), ("second", "failed")]


def test_repeated_call_in_a_turn_stays_one_card() -> None:
    session, journal = session_with_prompts("p1"), Journal()
    repeated = {"title": "first", "status": "completed"}
    lines = [*tool_turn(journal, "p1", "first"), journal.tool("call_0", **repeated)]
    ingest(session, lines, lease=None)
    assert cards(session) == [("first", "completed")]


def test_long_ids_that_differ_at_their_end_are_two_calls() -> None:
    long = "x" * KEY_LIMIT
    session, journal = session_with_prompts("p1"), Journal()
    lines = [*journal.turn_begins("p1"), journal.tool(f"{long}1", title="a"), journal.tool(f"{long}2", title="b")]
    ingest(session, lines, lease=None)
    assert [title for title, _ in cards(session)] == ["a", "b"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"tool_call_id": "c1"}, {"tool_call_id": "c1", "sub_agent": "Sub-agent 1"}),
        ({"tool_call_id": "x" * 300 + "1"}, {"tool_call_id": "x" * 300 + "2"}),
    ],
)
def test_keys_of_different_calls_differ_and_fit(one: dict[str, str], other: dict[str, str]) -> None:
    keys = {key_of_tool(one), key_of_tool(other)}
    assert len(keys) == 2
    assert all(len(key) <= KEY_LIMIT for key in keys)

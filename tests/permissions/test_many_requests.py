"""An agent that leaves many requests open, or makes many of them, delays no other session by it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from executors_app.wire.questions.schema import parse_question
from sessions_app.kernel.rules.json_size import json_size
from sessions_app.models import AttentionItem, Intent, IntentKind, PermissionRequest, TaskSession
from sessions_app.permissions import open_requests
from sessions_app.permissions.open_requests import MAX_OPEN_REQUESTS
from sessions_app.permissions.views.request_cards import MAX_CARDS
from sessions_app.stream.ingest.line_costs import LINE_COST, TRANSACTION_BUDGET, line_bytes, line_cost
from tests.supervisor.journals import Journal, Line, ingest
from tests.supervisor.rows import conversation, fresh, make_user, names, running_session

pytestmark = pytest.mark.django_db(transaction=True)
FORM = parse_question(
    {"mode": "form", "message": "Which?", "requestedSchema": {"properties": {"name": {"type": "string"}}}}
)


def asking(session: TaskSession, journal: Journal, number: int) -> list[Line]:
    return [journal.requests_permission(f"{session.id}:{one}") for one in range(number)]


def queries_of(session: TaskSession, lines: Sequence[Line], beginning: str) -> int:
    with CaptureQueriesContext(connection) as queries:
        ingest(session, lines)
    return sum(query["sql"].startswith(beginning) for query in queries)


def with_open_requests(number: int, **more: Any) -> tuple[TaskSession, Journal]:
    session, journal = running_session(), Journal()
    ingest(session, [*journal.turn_begins("m1"), *({**line, **more} for line in asking(session, journal, number))])
    assert session.permissions.filter(state="pending").count() == number
    return session, journal


def test_open_requests_are_read_once_for_a_batch() -> None:
    session, journal = with_open_requests(3)
    reading = f'SELECT "{PermissionRequest._meta.db_table}"."id"'
    assert queries_of(session, [journal.tool(f"call {number}") for number in range(20)], reading) == 1


def test_open_attention_items_are_read_once_for_a_batch() -> None:
    session, journal = with_open_requests(12)
    with CaptureQueriesContext(connection) as queries:
        ingest(session, [journal.exits("m1")])
    assert PermissionRequest.objects.filter(session=session, state="expired").count() == 12
    assert not session.attention.filter(kind="permission", resolved_at=None).exists()
    reading = f'SELECT "{AttentionItem._meta.db_table}"."id", "{AttentionItem._meta.db_table}"."key"'
    of_session = [
        one["sql"] for one in queries if one["sql"].startswith(reading) and "session_id" in one["sql"].split("WHERE")[1]
    ]
    assert len(of_session) == 1


@pytest.mark.parametrize("kind", ["permission", "question"])
def test_end_of_an_agent_closes_any_number_of_requests_with_as_many_statements(kind: str) -> None:
    counts = []
    for number in (2, 30):
        session, journal = with_open_requests(number, **({"question": FORM} if kind == "question" else {}))
        counts.append(queries_of(session, [journal.exits("m1")], ""))
        assert not session.permissions.filter(state="pending").exists()
        assert not session.wait_keys.unsettled().exists()
        assert {token.reason for token in session.wait_keys.all()} == {"agent_gone"}
        assert names(session).count("session.permission.expired") == number
    assert counts[0] == counts[1]


def test_agent_that_leaves_too_many_requests_open_is_stopped() -> None:
    session, journal = with_open_requests(MAX_OPEN_REQUESTS)
    assert fresh(session).desired_state == "running"
    for number in range(3):
        ingest(session, [journal.requests_permission(f"more {number}")])
    assert session.permissions.count() == MAX_OPEN_REQUESTS
    assert fresh(session).desired_state == "stopped"
    assert Intent.objects.get(session=session, kind=IntentKind.STOP).payload == {"reason": "output_limit"}
    explanations = [text for role, text, *_ in conversation(session) if role == "status"]
    assert len([text for text in explanations if f"more than {MAX_OPEN_REQUESTS} permissions" in text]) == 1
    ingest(session, [journal.exits("m1", expected=True)])
    assert not session.permissions.filter(state="pending").exists()
    assert any("bytes of the agent’s output were left out" in text for _, text, *_ in conversation(session))


def test_answered_requests_leave_room_for_others() -> None:
    session, journal = with_open_requests(MAX_OPEN_REQUESTS)
    ingest(session, [journal.line("permission.resolved", permission_id=f"{session.id}:0", option_id="yes")])
    ingest(session, [journal.requests_permission("another")])
    assert session.permissions.get(id="another").state == "pending"
    assert fresh(session).desired_state == "running"


def test_open_requests_have_a_limited_size_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_requests, "MAX_OPEN_BYTES", 100_000)
    session, journal = running_session(), Journal()
    ingest(session, [*journal.turn_begins("m1"), journal.tool("call", raw_input="x" * 60_000)])
    for number in range(3):
        line = {**journal.requests_permission(f"p{number}"), "tool_call": {"tool_call_id": "call"}}
        ingest(session, [line])
    assert list(session.permissions.values_list("id", flat=True)) == ["p0"]
    assert fresh(session).desired_state == "stopped"


def test_size_of_a_request_follows_what_is_reported_of_its_call() -> None:
    session, journal = running_session(), Journal()
    begin = journal.turn_begins("m1")
    ingest(session, [*begin, {**journal.requests_permission("p0"), "tool_call": {"tool_call_id": "call"}}])
    ingest(session, [journal.tool("call", title="Delete", raw_input={"command": "rm -r build"})])
    request = session.permissions.get()
    assert request.tool_call["title"] == "Delete"
    assert request.size == sum(map(json_size, (request.tool_call, request.options, request.question)))


def test_single_request_may_be_larger_than_all_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_requests, "MAX_OPEN_BYTES", 1_000)
    session, journal = running_session(), Journal()
    call = {"tool_call_id": "call", "raw_input": "x" * 10_000}
    ingest(session, [*journal.turn_begins("m1"), {**journal.requests_permission("large"), "tool_call": call}])
    assert session.permissions.get().tool_call == call
    assert session.permissions.get().size > 10_000
    assert fresh(session).desired_state == "running"


def test_requests_about_other_calls_are_not_read() -> None:
    session, journal = with_open_requests(3)
    with CaptureQueriesContext(connection) as queries:
        ingest(session, [journal.tool("call"), journal.tool("call", status="completed")])
    assert not [query for query in queries if '"session_permissions"."tool_call"' in query["sql"]]


def test_page_shows_a_limited_number_of_requests_and_where_the_others_are(client: Client) -> None:
    session, _ = with_open_requests(MAX_CARDS + 3)
    user = make_user("reader")
    user.groups.add(session.task.team)
    client.force_login(user)
    page = client.get(f"/tasks/{session.task_id}/sessions/{session.id}/").content.decode()
    assert page.count('class="card asks permission-card"') == MAX_CARDS
    assert "3 more requests are open" in page
    at = f"/api/v1/tasks/{session.task_id}/sessions/{session.id}/permissions/?state=pending"
    assert at in page
    assert client.get(at).json()["count"] == MAX_CARDS + 3


@pytest.mark.parametrize("end", ["deadline", "answer", "withdrawn"])
def test_requests_that_nobody_can_answer_any_more_take_no_place_of_others(end: str, client: Client) -> None:
    session, journal = with_open_requests(MAX_CARDS)
    if end == "withdrawn":
        withdrawn = [
            journal.line("permission.cancelled", permission_id=f"{session.id}:{number}", reason="withdrawn")
            for number in range(MAX_CARDS)
        ]
        ingest(session, withdrawn)
        ingest(session, [journal.requests_permission("closed"), journal.exits("m1")])
        shown = "The agent ended before it got an answer"
    else:
        field = {"deadline": "expired_at", "answer": "consumed_at"}[end]
        session.wait_keys.update(**{field: timezone.now()})
        ingest(session, [journal.requests_permission("another")])
        shown = 'value="another"'
    user = make_user("reader")
    user.groups.add(session.task.team)
    client.force_login(user)
    assert shown in client.get(f"/tasks/{session.task_id}/sessions/{session.id}/").content.decode()


def test_requests_after_each_other_show_what_is_reported_of_their_calls() -> None:
    session, journal = with_open_requests(1)
    options = [{"option_id": "yes"}]
    first = journal.tool("call", title="Remove files")
    request = journal.line(
        "permission.requested", permission_id="asked", tool_call={"tool_call_id": "call"}, options=options
    )
    settled = journal.line("permission.cancelled", permission_id="asked", reason="withdrawn")
    again = journal.line(
        "permission.requested", permission_id="again", tool_call={"tool_call_id": "call"}, options=options
    )
    ingest(session, [first, request, settled, again, journal.tool("call", raw_input="rm -r .")])
    calls = dict(session.permissions.filter(id__in=("asked", "again")).values_list("id", "tool_call"))
    assert calls["asked"].get("raw_input") is None
    assert calls["again"]["raw_input"] == "rm -r ."


@pytest.mark.parametrize("kind", ["permission.requested", "permission.resolved", "turn.failed", "prompt.accepted"])
def test_line_with_statements_of_its_own_counts_for_its_time_but_not_as_output(kind: str) -> None:
    line: dict[str, Any] = Journal().line(kind)
    assert TRANSACTION_BUDGET // line_cost(line) <= 16
    assert line_bytes(line) < 2 * LINE_COST


def test_flood_of_requests_is_written_in_small_transactions() -> None:
    session, journal = running_session(), Journal()
    ingest(session, journal.turn_begins("m1"))
    assert queries_of(session, asking(session, journal, 40), "BEGIN") >= 3
    assert session.permissions.count() == 40

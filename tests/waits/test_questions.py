"""Questions of agents: answers are checked, encrypted, delivered once and deleted; every end is reported."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import connection

from executors_app.wire.protocol import JournalKind
from executors_app.wire.questions.schema import options_of, parse_question
from sessions_app.kernel.services.errors import Invalid, InvalidAnswer, TokenConsumed
from sessions_app.models import AttentionItem, PermissionRequest, TaskSession
from sessions_app.permissions.services import answer_permission, undelivered_content
from sessions_app.sessions.services.status import session_status
from sessions_app.stream.views import render_messages
from tests.attention.reading import as_read
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.rows import (
    conversation,
    fresh,
    key_of,
    last_payload,
    make_user,
    names,
    open_orders,
    running_session,
)

pytestmark = pytest.mark.django_db

FIELDS: dict[str, Any] = {
    "engine": {"type": "string", "title": "Engine", "oneOf": [{"const": "pg", "title": "PostgreSQL"}]},
    "name": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 40},
}
FORM = parse_question(
    {"mode": "form", "message": "Which?", "requestedSchema": {"properties": FIELDS, "required": ["name"]}}
)
LINK = parse_question({"mode": "url", "message": "Log in", "url": "https://example.org/a", "elicitationId": "e1"})
TYPED = "walrusword"
ANSWER = {"engine": "pg", "name": TYPED}


def session_with_question(question: dict[str, Any] | None = None) -> tuple[TaskSession, Journal]:
    """Return a session whose agent waits for the answer to a question, and its journal."""
    session, journal = running_session(), Journal()
    schema = question or FORM
    body = {"tool_call": {"title": schema["message"]}, "options": options_of(schema), "question": schema}
    begins = journal.turn_begins("p1")
    ingest(session, [*begins, journal.line(JournalKind.PERMISSION_REQUESTED, permission_id="q1", **body)])
    return session, journal


def respond(session: TaskSession, option: str, content: Any = None, who: str = "ada") -> PermissionRequest:
    return answer_permission(session.id, "q1", option, key_of(session, "q1"), make_user(who), content=content)


def request_of(session: TaskSession) -> PermissionRequest:
    return session.permissions.get(id="q1")


def stored_texts() -> str:
    """Return all text in the tables that an answer passes through."""
    with connection.cursor() as cursor:
        found = []
        for table in (
            "session_permissions",
            "session_intents",
            "session_events",
            "resume_tokens",
            "session_message_parts",
        ):
            cursor.execute(f"SELECT * FROM {table}")  # noqa: S608
            found += cursor.fetchall()
    return str(found)


def test_question_raises_an_item_and_shows_in_the_status() -> None:
    session, _ = session_with_question()
    status = session_status(fresh(session))
    assert (status["pending_questions"], status["pending_permissions"]) == (1, 0)
    assert (status["derived_status"], status["needs_attention"]) == ("waiting", True)
    item = as_read(AttentionItem.objects.get(session=session))
    assert (item.kind, item.what, item.why) == ("question", "The agent asks a question", "Which?")
    assert last_payload(session, "session.permission.requested")["question"] == FORM
    assert last_payload(session, "session.run.waiting")["asks"] == "question"


def test_answer_is_encrypted_until_delivered_and_then_deleted() -> None:
    session, journal = session_with_question()
    respond(session, "accept", ANSWER)
    assert undelivered_content(request_of(session)) == ANSWER
    assert open_orders(session) == [("answer", {"permission_id": "q1", "option_id": "accept"})]
    assert TYPED not in stored_texts()

    ingest(session, [journal.line(JournalKind.PERMISSION_RESOLVED, permission_id="q1", option_id="accept")])

    row = request_of(session)
    assert (row.question_status, row.answer, undelivered_content(row)) == ("answered", {"engine": "pg"}, {})
    assert TYPED not in stored_texts()
    role, text, payload, _ = conversation(session)[-1]
    assert (role, text) == ("status", "Question answered: Which?")
    assert payload["question"]["answer"] == [{"field": "Engine", "value": "PostgreSQL"}]
    assert (payload["question"]["by"], payload["question"]["typed"]) == ("ada", True)
    assert last_payload(session, "session.permission.resolved")["answer"] == {"engine": "pg"}
    assert AttentionItem.objects.get(session=session).resolved_at is not None


def test_same_answer_is_accepted_again_and_another_one_is_not() -> None:
    session, _ = session_with_question()
    for who in ("ada", "bob"):
        respond(session, "accept", ANSWER, who)
    for option, content in (("accept", {"name": "other"}), ("decline", None)):
        with pytest.raises(TokenConsumed, match="ada has already answered this: Send answer"):
            respond(session, option, content)
    assert len(open_orders(session)) == 1
    assert undelivered_content(request_of(session)) == ANSWER


@pytest.mark.parametrize(
    ("content", "codes"),
    [
        (None, {"name": "required"}),
        ({"engine": "mysql", "name": "x", "more": 1}, {"engine": "not_offered", "more": "unknown_field"}),
        ({"name": "UPPER"}, {"name": "bad_pattern"}),
    ],
)
def test_invalid_answers_are_refused_by_field(content: Any, codes: dict[str, str]) -> None:
    session, _ = session_with_question()
    with pytest.raises(InvalidAnswer) as refused:
        respond(session, "accept", content)
    assert {name: problem["code"] for name, problem in refused.value.details["fields"].items()} == codes
    assert open_orders(session) == []
    assert respond(session, "accept", ANSWER).state == "pending"


@pytest.mark.parametrize(
    ("pattern", "code"), [("^(a+)+$", "pattern_timeout"), ("(a{1,9999}){1,9999}$", ""), (r"\p{Lu}(?<name>x)", "")]
)
def test_hostile_patterns_are_bounded(pattern: str, code: str) -> None:
    field = {"type": "string", "pattern": pattern}
    session, _ = session_with_question(
        parse_question({"mode": "form", "message": "?", "requestedSchema": {"properties": {"x": field}}})
    )
    try:
        respond(session, "accept", {"x": "a" * 60 + "!"})
        found = ""
    except InvalidAnswer as error:
        found = error.details["fields"]["x"]["code"]
    assert found == code or (not code and found in ("bad_pattern", "pattern_timeout"))


@pytest.mark.parametrize(("question", "option"), [(FORM, "decline"), (FORM, "cancel"), (LINK, "accept")])
def test_only_an_accepted_form_has_content(question: dict[str, Any], option: str) -> None:
    session, _ = session_with_question(question)
    with pytest.raises(Invalid):
        respond(session, option, {"name": "x"})
    respond(session, option)
    assert open_orders(session) == [("answer", {"permission_id": "q1", "option_id": option})]


RESOLVED, CANCELLED = JournalKind.PERMISSION_RESOLVED, JournalKind.PERMISSION_CANCELLED


@pytest.mark.parametrize(
    ("kind", "body", "status", "words"),
    [
        (RESOLVED, {"option_id": "decline"}, "declined", "Declined"),
        (RESOLVED, {"option_id": "cancel"}, "cancelled", "Dismissed"),
        (CANCELLED, {"reason": "withdrawn"}, "withdrawn", "The agent withdrew its question"),
        (CANCELLED, {"reason": "timeout"}, "cancelled", "Nobody answered in time"),
        (CANCELLED, {"reason": "agent_gone"}, "cancelled", "The agent ended before it got an answer"),
        (JournalKind.AGENT_EXITED, {"message_id": "p1", "exit_code": 9}, "cancelled", "The agent ended before it got"),
    ],
)
def test_every_end_of_a_question_is_shown(kind: JournalKind, body: dict[str, Any], status: str, words: str) -> None:
    session, journal = session_with_question()
    ingest(session, [journal.line(kind, **{"permission_id": "q1", **body})])
    assert request_of(session).question_status == status
    message = next(one for one in session.messages.order_by("-seq") if "question" in one.payload)
    assert words in render_messages([message], None)[0]["html"]
    assert AttentionItem.objects.get(session=session, kind="question").resolved_at is not None
    assert names(session).count("session.token.revoked") == 1


def test_completed_link_is_closed_as_the_agent_reports() -> None:
    session, journal = session_with_question(LINK)
    ingest(session, [journal.line(RESOLVED, permission_id="q1", option_id="accept", reason="completed")])
    message = session.messages.latest("seq")
    assert message.payload["question"]["url"] == LINK["url"]
    assert "The agent reports that this is done" in render_messages([message], None)[0]["html"]


def test_undelivered_answer_ends_with_its_agent() -> None:
    session, journal = session_with_question()
    respond(session, "accept", ANSWER)
    ingest(session, [journal.exits("p1")])
    row = request_of(session)
    assert (row.question_status, row.answer, undelivered_content(row)) == ("cancelled", {}, {})


def test_lost_secret_key_loses_only_the_answer_on_its_way(settings: Any) -> None:
    session, journal = session_with_question()
    respond(session, "accept", ANSWER)
    settings.SECRET_KEY = "new " * 20
    assert undelivered_content(request_of(session)) == {}
    ingest(session, [journal.line(RESOLVED, permission_id="q1", option_id="accept")])
    assert request_of(session).question_status == "answered"


@pytest.mark.parametrize(
    "question", [{"mode": "form"}, {"mode": "form", "message": "?", "schema": 5}, {**LINK, "url": "x"}]
)
def test_malformed_question_in_a_journal_is_skipped_and_reported(question: Any) -> None:
    session, journal = running_session(), Journal()
    line = journal.line(
        JournalKind.PERMISSION_REQUESTED, permission_id="q1", options=[], tool_call={}, question=question
    )
    ingest(session, [line, *journal.says("next")])
    assert not session.permissions.exists()
    assert last_payload(session, "session.journal_skipped")["kind"] == "permission.requested"


def test_fields_keep_the_order_of_the_agent() -> None:
    fields = {name: {"type": "boolean"} for name in ("zebra", "b", "ant")}
    question = parse_question({"mode": "form", "message": "?", "requestedSchema": {"properties": fields}})
    session, _ = session_with_question(
        json.loads(json.dumps(question, sort_keys=True)) | {"schema": question["schema"]}
    )
    assert request_of(session).question["order"] == ["zebra", "b", "ant"]

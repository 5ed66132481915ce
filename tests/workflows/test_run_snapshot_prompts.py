"""How a node follows its prompt: through resent and continued prompts to the answer, or to what blocks it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from sessions_app.models import Prompt, TaskSession
from sessions_app.workflows.driver.prompt_progress import NodeTurn, answer_text, follow_prompt
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.rows import change, running_session

pytestmark = pytest.mark.django_db


def chain(*states: str, by: str = "resent_as", **fields: Any) -> NodeTurn:
    """Return the reported turn of the first of several prompts, each one settled by the next."""
    session = running_session()
    rows = [
        Prompt.objects.create(session=session, message_id=f"p{number}", text="do it", state=state)
        for number, state in enumerate(states)
    ]
    for row, after in pairwise(rows):
        change(row, **{by: after})
    return follow_prompt(change(session, **fields), "p0")


@pytest.mark.parametrize("by", ["resent_as", "continued_by"])
@pytest.mark.parametrize(
    ("states", "waits_for"),
    [
        (["queued"], "agent"),
        (["sending"], ""),
        (["delivered"], ""),
        (["held"], "user"),
        (["interrupted"], "user"),
        (["dismissed", "queued"], "agent"),
        (["dismissed", "dismissed", "held"], "user"),
        (["done", "queued"], "agent"),
    ],
)
def test_last_prompt_of_chain_decides_what_is_waited_for(by: str, states: list[str], waits_for: str) -> None:
    turn = chain(*states, by=by)
    assert (turn.result, turn.waiting_for) == (None, waits_for)


@pytest.mark.parametrize(
    ("states", "words"),
    [
        (["dismissed"], "dismissed"),
        (["dismissed", "dismissed"], "dismissed"),
        (["withdrawn"], "withdrawn before"),
    ],
)
def test_chain_without_answer_fails(states: list[str], words: str) -> None:
    result = chain(*states).result
    assert result is not None
    assert words in result["error"]


@pytest.mark.parametrize(("state", "waits_for"), [("ERROR", "user"), ("FAILED", "user"), ("STARTING", "agent")])
def test_blocked_session_waits_for_user(state: str, waits_for: str) -> None:
    assert chain("queued", state=state).waiting_for == waits_for


@pytest.mark.parametrize("state", ["COMPLETED", "CANCELLED"])
def test_closed_session_fails_the_node(state: str) -> None:
    result = chain("queued", state=state).result
    assert result is not None
    assert "closed" in result["error"]


def test_permission_request_waits_for_user() -> None:
    session, journal = session_with_prompts("p0"), Journal()
    ingest(session, [*journal.turn_begins("p0"), journal.requests_permission("permission-1")])
    assert follow_prompt(session, "p0").waiting_for == "user"


def session_with_prompts(*message_ids: str) -> TaskSession:
    session = running_session()
    for message_id in message_ids:
        Prompt.objects.create(session=session, message_id=message_id, text="do it")
    return session


def test_answer_contains_only_its_own_turn() -> None:
    session, journal = session_with_prompts("p0", "p1"), Journal()
    ingest(session, [*journal.turn_begins("p0"), *journal.says("Look", "ing."), journal.tool("t1")])
    ingest(session, [*journal.says("Found it."), journal.completes("p0")])
    ingest(session, [*journal.turn_begins("p1"), *journal.says("Other."), journal.completes("p1")])
    assert answer_text(session.runs.get(message_id="p0")) == "Looking.\n\nFound it."
    result = follow_prompt(session, "p0").result
    assert result == {"text": "Looking.\n\nFound it.", "sessionId": str(session.id), "error": ""}


def test_cancelled_turn_fails_the_node() -> None:
    session, journal = session_with_prompts("p0"), Journal()
    ingest(session, [*journal.turn_begins("p0"), journal.line("turn.cancelled", message_id="p0")])
    result = follow_prompt(session, "p0").result
    assert result is not None
    assert "cancelled" in result["error"]


@pytest.mark.parametrize("is_there", [True, False])
def test_missing_prompt_fails_the_node(is_there: bool) -> None:
    result = follow_prompt(running_session() if is_there else None, "p0").result
    assert result is not None
    assert "deleted" in result["error"]

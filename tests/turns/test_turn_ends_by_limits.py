"""Turns that end normally without completed work: limits and errors told as text, early ends, commands."""

from __future__ import annotations

from typing import Any

import pytest

from executors_app.wire.protocol import JournalKind
from sessions_app.events import event_label
from sessions_app.models import Prompt, TaskSession, texts_of
from sessions_app.timeline.services import TIMELINE_EVENTS
from sessions_app.workflows.driver.prompt_progress import _turn_error
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.rows import running_session

pytestmark = pytest.mark.django_db

LIMIT = "You've hit your session limit · resets 7:30pm (Europe/Amsterdam)"


def after_turn(text: str, prompt: str = "do it", **end: Any) -> TaskSession:
    """Return a session after a turn with this text and this end."""
    session, journal = running_session(), Journal()
    Prompt.objects.create(session=session, message_id="p1", text=prompt, state="sending")
    begin = journal.turn_begins("p1")
    lines = journal.says(text) if text else []
    body = {"stop_reason": "end_turn", "output": bool(text), **end}
    ingest(session, [*begin, *lines, journal.line(JournalKind.TURN_COMPLETED, message_id="p1", **body)], lease=None)
    return session


def status_texts(session: TaskSession) -> list[str]:
    return list(texts_of(list(session.messages.filter(role="status").order_by("seq"))).values())


def test_usage_limit_told_as_text_fails_the_turn_and_stops_a_workflow() -> None:
    session = after_turn(LIMIT, only_text=LIMIT)
    run = session.runs.get()
    assert (run.state, run.reason) == ("failed", "usage_limit")
    assert not session.prompts.filter(kind="retry").exists()
    assert LIMIT in status_texts(session)[-1]
    assert "session limit" in _turn_error(run)


def test_transient_provider_error_told_as_text_is_retried() -> None:
    error = "API Error: 529 Overloaded"
    session = after_turn(error, only_text=error)
    assert session.runs.get().state == "failed"
    assert session.prompts.get(kind="retry").trouble == "provider_overloaded"


def test_same_text_beside_other_work_is_an_answer() -> None:
    session = after_turn(LIMIT)  # agentctl reports ``only_text`` for nothing but a short text
    assert session.runs.get().state == "completed"


def test_cancelled_turn_that_the_agent_ends_regularly_is_shown_as_cancelled() -> None:
    session, journal = running_session(), Journal()
    Prompt.objects.create(session=session, message_id="p1", text="do it", state="sending")
    body = {"message_id": "p1", "stop_reason": "cancelled", "agent_stop_reason": "end_turn"}
    lines = [*journal.turn_begins("p1"), *journal.says("half"), journal.line(JournalKind.TURN_CANCELLED, **body)]
    ingest(session, lines, lease=None)
    assert session.runs.get().state == "cancelled"
    names = [event.name for event in session.events.order_by("seq")]
    assert "session.run.completed" not in names
    cancelled = session.events.get(name="session.run.cancelled")
    assert cancelled.name in TIMELINE_EVENTS
    assert event_label(cancelled.name, cancelled.payload).text == "The turn was cancelled"


def test_turn_that_the_agent_cancels_on_its_own_says_so() -> None:
    session, journal = running_session(), Journal()
    Prompt.objects.create(session=session, message_id="p1", text="do it", state="sending")
    body = {"message_id": "p1", "stop_reason": "cancelled", "agent_stop_reason": "cancelled", "by_agent": True}
    lines = [*journal.turn_begins("p1"), *journal.says("half"), journal.line(JournalKind.TURN_CANCELLED, **body)]
    ingest(session, lines, lease=None)
    run = session.runs.get()
    assert (run.state, run.reason) == ("cancelled", "cancelled_by_agent")
    assert "cancelled this turn on its own" in status_texts(session)[-1]
    cancelled = session.events.get(name="session.run.cancelled")
    assert event_label(cancelled.name, cancelled.payload).text == "The agent cancelled the turn on its own"


@pytest.mark.parametrize("reason", ["max_tokens", "max_turn_requests", "out_of_luck"])
def test_early_end_is_shown_and_stops_a_workflow(reason: str) -> None:
    session = after_turn("half of it", stop_reason=reason)
    run = session.runs.get()
    assert run.state == "completed"
    assert reason in status_texts(session)[-1]
    assert reason in _turn_error(run)


@pytest.mark.parametrize("reason", [None, "", "  "])
def test_end_without_a_stop_reason_is_shown_and_stops_a_workflow(reason: object) -> None:
    session = after_turn("half of it", stop_reason=reason)
    run = session.runs.get()
    assert (run.state, run.reason) == ("completed", "no_stop_reason")
    assert "without saying why" in status_texts(session)[-1]
    assert "without saying why" in _turn_error(run)


@pytest.mark.parametrize("reason", [False, 0, [], {}, ["end_turn"], {"reason": "end_turn"}])
def test_stop_reason_that_is_no_text_is_shown_as_unknown(reason: object) -> None:
    session = after_turn("half of it", stop_reason=reason)
    assert f"a reason that Kandev does not know: {reason}." in status_texts(session)[-1]


@pytest.mark.parametrize(("prompt", "state"), [("/compact", "completed"), ("do it", "failed")])
def test_only_a_command_may_end_without_output(prompt: str, state: str) -> None:
    assert after_turn("", prompt=prompt).runs.get().state == state

"""A new prompt wakes a stopped session, does not wait for the next retry, and ends a turn that waits for its user."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from sessions_app.models import Intent, Prompt, TaskSession
from sessions_app.prompts import services as prompts
from sessions_app.sessions.services import intents
from sessions_app.starts.outcomes import StartFailure, write_start_failure, write_stopped
from sessions_app.supervisor.dispatcher import next_start_intent
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.rows import (
    answer,
    change,
    execution_of,
    fresh,
    make_session,
    make_user,
    prompt_states,
    running_session,
)

pytestmark = pytest.mark.django_db

Ask = Callable[[TaskSession], Any]


def waiting(journal: Journal, *permission_ids: str) -> TaskSession:
    """Return a session whose agent waits for these permission requests."""
    session = running_session()
    for message_id, state in (("p0", "sending"), ("h1", "held"), ("i1", "interrupted")):
        Prompt.objects.create(session=session, message_id=message_id, text="do it", state=state)
    ingest(session, [*journal.turn_begins("p0"), *(journal.requests_permission(one) for one in permission_ids)])
    return session


def cancels(session: TaskSession) -> list[Any]:
    return [order.payload for order in Intent.objects.filter(session=session, kind="cancel")]


def by_prompt(session: TaskSession) -> Any:
    return prompts.queue_prompt(session.id, "p1", "something else", make_user())


def by_resend(session: TaskSession) -> Any:
    return prompts.resend_prompt(session.id, "h1", make_user())


def by_continue(session: TaskSession) -> Any:
    return prompts.continue_interrupted(session.id, "i1", make_user())


@pytest.mark.parametrize("ask", [by_prompt, by_resend, by_continue])
def test_prompt_cancels_the_turn_that_waits_for_a_permission(ask: Ask) -> None:
    session = waiting(Journal(), "a", "b")
    ask(session)
    assert cancels(session) == [{"message_id": "p0"}]


def test_several_prompts_cancel_the_waiting_turn_once() -> None:
    session = waiting(Journal(), "a")
    for number in range(3):
        prompts.queue_prompt(session.id, f"p{number + 1}", "something else", make_user())
    assert cancels(session) == [{"message_id": "p0"}]


def test_prompt_behind_an_answered_turn_is_queued() -> None:
    session = waiting(Journal(), "a")
    answer(session, "a", "yes")
    by_prompt(session)
    assert cancels(session) == []
    assert prompt_states(session)["p1"] == "queued"


def test_turn_with_one_of_two_requests_open_is_cancelled() -> None:
    session = waiting(Journal(), "a", "b")
    answer(session, "a", "yes")
    by_prompt(session)
    assert cancels(session) == [{"message_id": "p0"}]


def test_working_turn_is_not_cancelled_by_a_new_prompt() -> None:
    session = waiting(Journal())
    by_prompt(session)
    assert cancels(session) == []


def test_prompt_does_not_wait_for_the_next_restart_time() -> None:
    session = running_session(launch_id="", state="ERROR", next_restart_at=timezone.now() + timedelta(hours=1))
    intents.ensure_start_intent(session, None, "auto")
    assert next_start_intent(session.id) is None
    by_prompt(session)
    assert next_start_intent(session.id) is not None


@pytest.mark.parametrize(
    ("before", "execution"),
    [
        ({"desired_state": "stopped", "stopped_by_user": True}, {"status": "stopped", "status_reason": "stopped"}),
        ({"state": "ERROR", "error_code": "start_timeout"}, {"status": "ready"}),
        ({"state": "ERROR", "error_code": "launch_failed"}, {"status": "error", "error_code": "launch_failed"}),
        ({}, {"status": "stopped", "status_reason": "idle"}),
    ],
    ids=["stopped", "agent failed", "workspace failed", "asleep"],
)
def test_prompt_starts_a_session_that_is_not_running(before: dict[str, Any], execution: dict[str, Any]) -> None:
    session = running_session(launch_id="", execution=execution, **before)
    by_prompt(session)
    assert session.intents.filter(kind="start", done_at=None).count() == 1
    assert fresh(session).desired_state == "running"
    assert prompt_states(session) == {"p1": "queued"}


def test_prompt_starts_a_session_that_was_never_started() -> None:
    session = make_session()
    session.intents.all().delete()
    change(session, desired_state="stopped", stopped_by_user=True)
    by_prompt(session)
    assert session.intents.filter(kind="start", done_at=None).count() == 1
    assert (execution_of(session).status, fresh(session).state) == ("stopped", "CREATED")


def test_resent_continue_prompt_stays_a_continue_prompt() -> None:
    session = running_session()
    Prompt.objects.create(session=session, message_id="continue:1", text="Go on.", kind="continue", state="held")
    assert prompts.resend_prompt(session.id, "continue:1", make_user()).kind == "continue"


def test_closing_a_session_withdraws_queued_and_holds_undelivered_prompts() -> None:
    session = running_session()
    for message_id, state in (("p1", "sending"), ("p2", "queued"), ("p3", "done")):
        Prompt.objects.create(session=session, message_id=message_id, text="do it", state=state)
    write_stopped(session.id, None, "stopped")
    assert prompt_states(session) == {"p1": "sending", "p2": "queued", "p3": "done"}
    write_stopped(session.id, None, "closed", "completed")
    assert prompt_states(session) == {"p1": "held", "p2": "withdrawn", "p3": "done"}


@pytest.mark.parametrize(
    ("failure", "after"),
    [
        (StartFailure("context_mismatch", "Another one.", permanent=True, needs_user=True), "held"),
        (StartFailure("launch_failed", "It ended."), "sending"),
    ],
)
def test_failed_start_that_needs_a_user_holds_the_prompt_being_sent(failure: StartFailure, after: str) -> None:
    session = running_session(launch_id="", state="STARTING")
    Prompt.objects.create(session=session, message_id="p1", text="do it", state="sending")
    write_start_failure(session.id, intents.ensure_start_intent(session, None, "auto").id, None, failure)
    assert prompt_states(session) == {"p1": after}


def test_giving_up_a_session_holds_the_prompt_being_sent() -> None:
    session = running_session(launch_id="", state="STARTING", start_attempts=5)
    Prompt.objects.create(session=session, message_id="p1", text="do it", state="sending")
    write_start_failure(
        session.id,
        intents.ensure_start_intent(session, None, "auto").id,
        None,
        StartFailure("launch_failed", "It ended."),
    )
    assert (fresh(session).state, prompt_states(session)) == ("FAILED", {"p1": "held"})

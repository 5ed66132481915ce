"""Stopping, closing, cancelling and answering: each intent is created once, and the strongest is carried out first."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest
from django.utils import timezone

from sessions_app.board.services import tasks
from sessions_app.kernel.services.errors import Conflict, Invalid, NotFound, TerminalState, TokenConsumed, TokenInvalid
from sessions_app.models import Intent, IntentKind, PermissionRequest, Prompt, TaskSession
from sessions_app.permissions.services import answer_permission
from sessions_app.prompts import services as prompts
from sessions_app.sessions.services import intents
from sessions_app.sessions.services.status import session_status
from sessions_app.starts.outcomes import write_stopped
from sessions_app.supervisor.dispatcher import next_overtaking_intent
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.rows import (
    answer,
    change,
    execution_of,
    fresh,
    key_of,
    last_payload,
    make_session,
    make_task,
    make_user,
    open_orders,
    running_session,
)

pytestmark = pytest.mark.django_db


# --- stop, close, cancel ---


def test_stop_withdraws_an_unclaimed_start() -> None:
    session = make_session()
    intents.request_stop(session.id, make_user())
    start = session.intents.get(kind="start")
    assert (start.done_at is not None, start.outcome) == (True, "stopped")
    assert [kind for kind, _ in open_orders(session)] == ["stop"]
    assert (fresh(session).desired_state, fresh(session).stopped_by_user) == ("stopped", True)


def test_stop_leaves_a_claimed_start_open() -> None:
    session = make_session()
    session.intents.update(claimed_generation=1)
    intents.request_stop(session.id, make_user())
    assert [kind for kind, _ in open_orders(session)] == ["start", "stop"]


def test_stopping_twice_creates_one_intent() -> None:
    session = running_session()
    for _ in range(2):
        intents.request_stop(session.id, make_user())
    assert [kind for kind, _ in open_orders(session)] == ["stop"]


@pytest.mark.parametrize("outcome", ["completed", "cancelled"])
def test_closing_twice_creates_one_intent_and_stops_the_session(outcome: str) -> None:
    session = running_session()
    for _ in range(2):
        intents.request_close(session.id, make_user(), outcome)
    assert open_orders(session) == [("close", {"as": outcome})]
    assert fresh(session).desired_state == "stopped"


def test_consent_to_delete_the_transcript_is_part_of_the_close() -> None:
    session = running_session()
    intents.request_close(session.id, make_user(), "completed", delete_transcript=True)
    assert open_orders(session) == [("close", {"as": "completed", "delete_transcript": True})]


def test_result_of_the_deletion_is_in_the_log() -> None:
    session = running_session()
    write_stopped(session.id, None, "closed", "completed", {"deleted": False, "reason": "it is\nlocked"})
    assert last_payload(session, "session.transcript") == {
        "deleted": False,
        "confirmed": False,
        "reason": "it is locked",
    }


def test_session_cannot_be_closed_with_two_outcomes() -> None:
    session = running_session()
    intents.request_close(session.id, make_user(), "completed")
    with pytest.raises(Conflict):
        intents.request_close(session.id, make_user(), "cancelled")
    with pytest.raises(Invalid):
        intents.request_close(session.id, make_user(), "somehow")


def test_closed_session_cannot_be_closed_again() -> None:
    session = running_session(state="COMPLETED")
    with pytest.raises(TerminalState):
        intents.request_close(session.id, make_user(), "completed")


def test_cancel_names_its_turn() -> None:
    session = running_session()
    assert not intents.request_cancel(session.id, make_user())
    ingest(session, Journal().turn_begins("p1"))
    assert intents.request_cancel(session.id, make_user())
    assert open_orders(session) == [("cancel", {"message_id": "p1"})]


@pytest.mark.parametrize("end", [tasks.archive_task, tasks.finish_task])
def test_finished_or_archived_task_stops_its_sessions(end: Callable[..., object]) -> None:
    task = make_task()
    session = running_session(task=task)
    end(task, make_user())
    assert fresh(session).desired_state == "stopped"
    assert [kind for kind, _ in open_orders(session)] == ["stop"]
    with pytest.raises(TerminalState):
        prompts.queue_prompt(session.id, "p1", "do it", make_user())
    with pytest.raises(TerminalState):
        make_session(task=task)


def test_session_can_be_deleted_once_nothing_of_it_can_run() -> None:
    session = running_session()
    with pytest.raises(Conflict):
        tasks.delete_session(session)
    change(execution_of(session), status="stopped")
    intents.request_stop(session.id, make_user())
    with pytest.raises(Conflict):
        tasks.delete_session(session)
    session.intents.update(done_at=timezone.now())
    tasks.delete_session(session)
    assert not TaskSession.objects.exists()


# --- answers ---


def waiting_session() -> TaskSession:
    session, journal = running_session(), Journal()
    ingest(session, [*journal.turn_begins("p1"), journal.requests_permission("q1")])
    return session


def test_first_answer_counts_and_later_ones_are_told_which() -> None:
    session = waiting_session()
    for _ in range(2):
        answer(session, "q1", "yes")
    with pytest.raises(TokenConsumed, match="ada has already answered this: Yes") as refused:
        answer(session, "q1", "no", "bob")
    assert (refused.value.details["option_id"], refused.value.details["by"]) == ("yes", "ada")
    assert open_orders(session) == [("answer", {"permission_id": "q1", "option_id": "yes"})]


def test_repeated_equal_answer_is_accepted() -> None:
    session = waiting_session()
    answer(session, "q1", "yes")
    session.intents.update(done_at=timezone.now())
    PermissionRequest.objects.update(state="resolved", option_id="yes")
    assert answer(session, "q1", "yes", "bob").state == "resolved"
    with pytest.raises(TokenConsumed):
        answer(session, "q1", "no")
    assert open_orders(session) == []


def test_only_open_permissions_and_offered_options_can_be_answered() -> None:
    session, user = waiting_session(), make_user()
    key = key_of(session, "q1")
    with pytest.raises(Invalid):
        answer_permission(session.id, "q1", "maybe", key, user)
    with pytest.raises(NotFound):
        answer_permission(session.id, "q2", "yes", key, user)
    with pytest.raises(NotFound):
        answer_permission(running_session().id, "q1", "yes", key, user)
    assert open_orders(session) == []


def test_key_is_valid_only_for_its_own_permission() -> None:
    session, other, user = waiting_session(), running_session(), make_user()
    journal = Journal()
    ingest(other, [*journal.turn_begins("p1"), journal.requests_permission("r1"), journal.requests_permission("r2")])
    for key in ("", "kwt_nonsense", key_of(other, "r1")):
        with pytest.raises(TokenInvalid):
            answer_permission(session.id, "q1", "yes", key, user)
    with pytest.raises(TokenInvalid):
        answer_permission(other.id, "r2", "yes", key_of(other, "r1"), user)
    assert open_orders(session) == open_orders(other) == []


def test_stopping_an_unknown_session_raises() -> None:
    with pytest.raises(TaskSession.DoesNotExist):
        intents.request_stop(uuid.uuid4(), make_user())


def test_overtaking_intents_are_carried_out_strongest_first() -> None:
    session = waiting_session()
    answer(session, "q1", "yes")
    intents.request_cancel(session.id, make_user())
    intents.request_stop(session.id, make_user())
    intents.request_close(session.id, make_user(), "completed")
    order = []
    while (row := next_overtaking_intent(session.id)) is not None:
        order.append(row.kind)
        Intent.objects.filter(id=row.id).update(done_at=timezone.now())
    assert order == [IntentKind.CLOSE, IntentKind.STOP, IntentKind.CANCEL, IntentKind.ANSWER]


def test_turn_of_a_stopped_session_is_not_a_crash() -> None:
    session = running_session()
    Prompt.objects.create(session=session, message_id="p1", text="go on", state="sending")
    journal = Journal()
    ingest(session, journal.turn_begins("p1"))
    intents.request_stop(session.id, make_user())
    ingest(session, [journal.exits()])  # the journal reports the end before the stop is written
    assert (session.runs.get().state, session.runs.get().reason) == ("interrupted", "stopped")
    assert session_status(fresh(session))["derived_status"] == "idle"

"""An agent that starts and then dies is restarted after growing delays, and given up with its real cause."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from executors_app.wire.protocol import JournalKind
from sessions_app.models import Prompt, TaskSession, session_transaction
from sessions_app.recovery.services.assessment import assess_session
from sessions_app.sessions.services.intents import request_resume
from sessions_app.sessions.services.status import load_status
from sessions_app.sessions.views.session_page import composer_refusal, wants_start_on_open
from sessions_app.sessions.views.session_summary import banner_buttons
from sessions_app.starts.rules.restart_rules import restart_delay_after_death, stable_after
from sessions_app.turns.interruptions import explain_agent_deaths, record_agent_death
from tests.pages.world import supervise
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.rows import change, fresh, make_user, running_session, shown_situation

pytestmark = pytest.mark.django_db


def ingest_exit(session: TaskSession, *, in_turn: bool = True, expected: bool = False) -> TaskSession:
    """Ingest the exit of its agent."""
    if in_turn:
        Prompt.objects.create(session=session, message_id="p1", text="go on", state="sending")
    journal = Journal()
    turn = journal.turn_begins("p1") if in_turn else []
    ended = journal.exits("p1" if in_turn else None, expected=expected) | {"ts": timezone.now().timestamp()}
    ingest(session, [*turn, ended])
    return fresh(session)


def seconds_until_restart(session: TaskSession) -> float:
    """Return the seconds until its next start; 0 means immediately."""
    at = session.next_restart_at
    return 0.0 if at is None else (at - timezone.now()).total_seconds()


@pytest.mark.parametrize(("attempts", "most"), [(0, 0), (1, 5), (2, 10), (3, 20), (4, 40)])
@pytest.mark.parametrize("in_turn", [True, False])
def test_restart_delay_grows_with_each_death_after_the_first(attempts: int, most: int, in_turn: bool) -> None:
    session = ingest_exit(running_session(start_attempts=attempts), in_turn=in_turn)
    assert most / 2 - 2 <= seconds_until_restart(session) <= most
    assert session.start_attempts == attempts
    assert restart_delay_after_death(attempts, 1.0) == timedelta(seconds=most)


@pytest.mark.parametrize("fields", [{"policy": "manual"}, {"desired_state": "stopped"}, {"start_attempts": 5}], ids=min)
def test_no_restart_is_scheduled_that_will_not_happen(fields: dict[str, Any]) -> None:
    session = ingest_exit(running_session(**{"start_attempts": 2, **fields}))
    assert session.next_restart_at is None


def test_death_before_a_restart_is_remembered_until_a_person_takes_over() -> None:
    session = ingest_exit(running_session())
    died_at = session.died_at
    assert died_at is not None
    with session_transaction(session.id) as transaction:
        record_agent_death(transaction)
    assert fresh(session).died_at == died_at, "a sweep that finds it dead, too, is no second death"
    request_resume(session.id, make_user())
    assert fresh(session).died_at is None


@pytest.mark.parametrize("fields", [{"policy": "manual"}, {"desired_state": "stopped"}], ids=min)
def test_death_that_nobody_waits_for_is_not_remembered(fields: dict[str, Any]) -> None:
    assert ingest_exit(running_session(**fields)).died_at is None


def test_requested_exit_schedules_no_delay() -> None:
    assert ingest_exit(running_session(start_attempts=2), in_turn=False, expected=True).next_restart_at is None


@pytest.mark.parametrize(("attempts", "minutes"), [(0, 1), (1, 2), (2, 4), (3, 8), (4, 10), (50, 10)])
def test_required_stable_time_grows_with_the_number_of_restarts(attempts: int, minutes: int) -> None:
    assert stable_after(attempts) == timedelta(minutes=minutes)


@pytest.mark.parametrize(("alive", "attempts"), [(timedelta(minutes=3), 2), (timedelta(minutes=5), 0)])
def test_agent_that_stays_alive_long_enough_resets_the_count(alive: timedelta, attempts: int) -> None:
    session = ingest_exit(running_session(start_attempts=2, ready_since=timezone.now() - alive), in_turn=False)
    assert session.start_attempts == attempts


def test_agent_that_is_given_up_gets_no_continue_prompt() -> None:
    session = ingest_exit(running_session(start_attempts=4, continue_prompts=True))
    assert session.prompts.filter(kind="continue").count() == 1
    given_up = ingest_exit(running_session(start_attempts=5, continue_prompts=True))
    assert not given_up.prompts.filter(kind="continue").exists()


def test_continue_prompt_quotes_the_request_and_no_other_continue_prompt() -> None:
    session = ingest_exit(running_session(continue_prompts=True))
    first = session.prompts.get(kind="continue")
    change(first, state="sending")
    journal = Journal("epoch-2")
    ingest(session, [*journal.turn_begins(first.message_id), journal.exits(first.message_id)], lease=None)
    second = session.prompts.filter(kind="continue").last()
    assert second is not None
    assert "\n> go on\n" in second.text
    assert "> Your process was restarted" not in second.text


def test_cause_gives_number_kind_and_log_tail_of_the_deaths() -> None:
    session = running_session(start_attempts=1)
    journal = Journal()
    for number in (1, 2):
        Prompt.objects.create(session=session, message_id=f"p{number}", text="go on", state="sending")
        turn = journal.turn_begins(f"p{number}")
        exit_code = -9 if number == 2 else 3
        ingest(
            session, [*turn, journal.line(JournalKind.AGENT_EXITED, exit_code=exit_code, expected=False)], lease=None
        )
    with session_transaction(session.id) as transaction:
        transaction.log_tail = "one\ntwo\nfatal: no space left\n"
        deaths = explain_agent_deaths(transaction)
    assert deaths.startswith("The agent died in its turn 2 times in a row (exit code 3, signal 9).")
    assert "one / two / fatal: no space left" in deaths


@pytest.mark.parametrize("turn", [{}, {"first_seq": None, "last_seq": None}], ids=["ours", "of release 1.0.0"])
def test_deaths_before_the_last_completed_turn_are_no_cause(turn: dict[str, Any]) -> None:
    session, journal = running_session(start_attempts=3), Journal()
    Prompt.objects.create(session=session, message_id="p1", text="go on", state="sending")
    ingest(session, [journal.exits(), journal.exits(), *journal.turn_begins("p1"), journal.completes("p1")])
    change(session.runs.get(), **turn)
    with session_transaction(session.id) as transaction:
        assert explain_agent_deaths(transaction) == ""


def test_page_shows_the_restart_time_and_does_not_start_the_agent() -> None:
    session = ingest_exit(running_session(start_attempts=2))
    supervise()
    status = replace(load_status(session), starting=False)
    shown = shown_situation(session, starting=False)
    assert shown.text.startswith("The agent ended unexpectedly. It restarts at")
    assert not wants_start_on_open(status)


def test_banner_and_composer_of_a_given_up_session_agree() -> None:
    session = running_session(state="FAILED", error_code="agent_died", error_message="It died.", launch_id="")
    assessment = assess_session(session)
    shown = shown_situation(session)
    assert "Try again" in [button.text for button in banner_buttons(shown, assessment)]
    assert "Try again" in composer_refusal(session, assessment)


def test_restart_time_of_an_old_death_has_passed() -> None:
    session = change(running_session(), start_attempts=3)
    ingest(session, [Journal().exits()])
    at = fresh(session).next_restart_at
    assert at is not None
    assert at < datetime.now(UTC)

"""A prompt has one deadline for its agent's start and its delivery; a missed deadline is reported."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from sessions_app.models import Intent, Prompt, Supervisor, TaskSession
from sessions_app.prompts import overdue
from sessions_app.prompts import services as prompts
from sessions_app.sessions.services import intents
from sessions_app.sessions.services.status import session_status
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.rows import change, fresh, make_session, make_user, names, prompt_states, running_session

pytestmark = pytest.mark.django_db

LATE = timedelta(seconds=301)


def with_old_prompt(session: TaskSession, *, since: timedelta = LATE, state: str = "queued") -> TaskSession:
    """Add a prompt that was queued that long ago."""
    row = Prompt.objects.create(session=session, message_id="late", text="do it", state=state)
    change(row, created_at=timezone.now() - since)
    return session


def overdue_events(session: TaskSession) -> list[dict[str, Any]]:
    return [event.payload for event in session.events.filter(name="session.prompt.overdue")]


def failed() -> TaskSession:
    return running_session(launch_id="", state="ERROR", error_code="start_timeout", error_message="It took too long.")


def starting() -> TaskSession:
    return make_session()


def waiting_for_capacity() -> TaskSession:
    session = make_session()
    Intent.objects.filter(session=session).update(payload={"mode": "auto", "queued_for_capacity": True})
    return session


def disk_is_full() -> TaskSession:
    return running_session(error_code="disk_full", error_message="The disk is full.")


def rejected() -> TaskSession:
    session = running_session(launch_id="", execution={"resume_token": "", "rejected_resume_token": "t"})
    ingest(session, [*(journal := Journal()).turn_begins("p0"), journal.completes("p0")])
    session.runs.update(ended_at=timezone.now() - LATE)
    return session


def test_reason_of_many_overdue_prompts_is_found_once(django_assert_max_num_queries: Any) -> None:
    session = make_session()
    for number in range(10):
        row = Prompt.objects.create(session=session, message_id=f"late {number}", text="do it")
        change(row, created_at=timezone.now() - LATE)
    with django_assert_max_num_queries(200) as queries:
        assert overdue.report_overdue_prompts() == 10
    starts = [query for query in queries if query["sql"].startswith('SELECT "session_intents"')]
    assert len(starts) == 1
    assert [event["reason"] for event in overdue_events(session)] == ["starting"] * 10


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (failed, "start_timeout"),
        (starting, "starting"),
        (waiting_for_capacity, "queued_for_capacity"),
        (disk_is_full, "disk_full"),
        (rejected, "agent_not_running_fresh_start"),
        (running_session, "running"),
    ],
)
def test_overdue_prompt_is_reported_once_with_its_reason(make: Callable[[], TaskSession], reason: str) -> None:
    session = with_old_prompt(make())
    assert overdue.report_overdue_prompts() == 1
    assert overdue.report_overdue_prompts() == 0
    [event] = overdue_events(session)
    assert (event["message_id"], event["reason"], event["state"]) == ("late", reason, "queued")
    assert event["waited_seconds"] >= LATE.total_seconds() - 1
    status = session_status(fresh(session))
    assert (status["overdue_prompts"], status["needs_attention"]) == (1, True)


def test_overdue_prompt_stays_queued_and_can_be_withdrawn() -> None:
    session = with_old_prompt(failed())
    overdue.report_overdue_prompts()
    assert prompt_states(session) == {"late": "queued"}
    prompts.withdraw_prompt(session.id, "late")
    assert session_status(fresh(session))["overdue_prompts"] == 0


def test_prompt_being_sent_can_be_overdue() -> None:
    session = with_old_prompt(running_session(), state="sending")
    overdue.report_overdue_prompts()
    assert [event["state"] for event in overdue_events(session)] == ["sending"]


def before_the_deadline() -> TaskSession:
    return with_old_prompt(failed(), since=timedelta(seconds=290))


def behind_a_turn() -> TaskSession:
    session = running_session()
    ingest(session, Journal().turn_begins("p0"))
    return with_old_prompt(session)


def behind_a_just_ended_turn() -> TaskSession:
    session = with_old_prompt(running_session())
    ingest(session, [*(journal := Journal()).turn_begins("p0"), journal.completes("p0")])
    session.runs.update(ended_at=timezone.now() - timedelta(seconds=5))
    return session


def of_a_stopped_session() -> TaskSession:
    session = with_old_prompt(running_session())
    intents.request_stop(session.id, make_user())
    return session


@pytest.mark.parametrize("make", [before_the_deadline, behind_a_turn, behind_a_just_ended_turn, of_a_stopped_session])
def test_prompt_with_another_reason_to_wait_is_not_overdue(make: Callable[[], TaskSession]) -> None:
    session = make()
    assert overdue.report_overdue_prompts() == 0
    assert session_status(fresh(session))["overdue_prompts"] == 0


def test_session_that_cannot_be_written_blocks_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    ill, healthy = with_old_prompt(failed()), with_old_prompt(failed())
    reason = overdue._overdue_reason
    monkeypatch.setattr(
        overdue,
        "_overdue_reason",
        lambda transaction: 1 / 0 if transaction.session.id == ill.id else reason(transaction),
    )
    assert overdue.report_overdue_prompts() == 1
    assert (overdue_events(ill), len(overdue_events(healthy))) == ([], 1)


def test_prompts_behind_many_that_were_reported_are_reported_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overdue, "OVERDUE_BATCH", 2)
    sessions = [with_old_prompt(failed()) for _ in range(5)]
    assert [overdue.report_overdue_prompts() for _ in range(4)] == [2, 2, 1, 0]
    assert all(len(overdue_events(session)) == 1 for session in sessions)


def test_page_reports_the_overdue_prompt_and_offers_to_withdraw_it() -> None:
    now, session = timezone.now(), with_old_prompt(failed())
    Supervisor.objects.create(boot_id="boot", host_id="host", started_at=now, beat_at=now, swept_at=now)
    browser = Client()
    browser.force_login(make_user())
    page = browser.get(f"/tasks/{session.task_id}/sessions/{session.id}/").content.decode()
    for word in ("has waited longer for the agent", "It took too long.", "you can withdraw it", "/withdraw/"):
        assert word in page, word
    assert names(session) == []

"""A turn in which the agent is silent is shown as stalled; nothing is stopped automatically."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from sessions_app.models import Prompt, SessionEvent, TaskSession, session_transaction
from sessions_app.prompts import services as prompts
from sessions_app.sessions.services.status import session_status
from sessions_app.turns.interruptions import interrupt_turn
from sessions_app.turns.silence import report_stalled_turns
from tests.supervisor.journals import Journal, Line, ingest
from tests.supervisor.rows import (
    MINE,
    change,
    execution_of,
    fresh,
    last_payload,
    make_user,
    names,
    running_session,
    runs,
)

pytestmark = pytest.mark.django_db


def backdate(line: Line, seconds: float) -> Line:
    """Return the line dated that many seconds ago."""
    return {**line, "ts": timezone.now().timestamp() - seconds}


def silent_session(journal: Journal, silent_for: float) -> TaskSession:
    session = running_session()
    Prompt.objects.create(session=session, message_id="p1", text="build", state="sending")
    lines = [*journal.turn_begins("p1"), journal.tool("t1", title="make all")]
    ingest(session, [backdate(line, silent_for) for line in lines])
    return fresh(session)


def report(session: TaskSession) -> int:
    return report_stalled_turns({session.id: MINE})


def test_stall_is_reported_once_after_five_minutes_and_the_turn_continues() -> None:
    session = silent_session(Journal(), silent_for=301)
    assert [report(session), report(session)] == [1, 0]
    payload = last_payload(session, "session.run.stalled")
    assert payload["unfinished_tools"] == ["make all"]
    assert session_status(fresh(session))["stalled_since"] == payload["since"]
    assert runs(session) == [("p1", "running")]
    assert not session.intents.filter(done_at=None).exists()


def test_output_clears_the_notice_and_a_new_stall_is_reported() -> None:
    journal = Journal()
    session = silent_session(journal, silent_for=900)
    assert report(session) == 1
    ingest(session, [backdate(line, 400) for line in journal.says("still compiling")])
    assert "session.run.heard_again" in names(session)
    assert session_status(fresh(session))["stalled_since"] is None
    assert report(session) == 1


@pytest.mark.parametrize("ended_by", ["completion", "interruption"])
def test_end_of_the_turn_clears_the_notice(ended_by: str) -> None:
    journal = Journal()
    session = silent_session(journal, silent_for=301)
    report(session)
    if ended_by == "completion":
        ingest(session, [journal.completes("p1")])
    else:
        with session_transaction(session.id) as transaction:
            interrupt_turn(transaction, "agentctl_gone")
    assert fresh(session).stalled_since is None


def test_prompts_of_users_do_not_count_as_output() -> None:
    session = silent_session(Journal(), silent_for=301)
    prompts.queue_prompt(session.id, "p2", "are you there?", make_user())
    assert report(session) == 1


def old_permission_request(journal: Journal) -> Line:
    return backdate(journal.requests_permission("q1"), 400)


@pytest.mark.parametrize("case", ["recent output", "open permission", "idle", "off", "another lease"])
def test_no_notice_without_a_stalled_turn(case: str, settings: Any) -> None:
    journal = Journal()
    session = silent_session(journal, silent_for=200 if case == "recent output" else 400)
    if case == "open permission":
        ingest(session, [old_permission_request(journal)])
    elif case == "idle":
        ingest(session, [backdate(journal.completes("p1"), 400)])
    elif case == "off":
        settings.KANDEV_STALL_NOTICE = 0
    assert (report_stalled_turns({}) if case == "another lease" else report(session)) == 0
    assert not SessionEvent.objects.filter(name="session.run.stalled").exists()


def test_supervisor_without_the_lease_reports_nothing() -> None:
    session = silent_session(Journal(), silent_for=400)
    change(execution_of(session), generation=99)
    assert report(session) == 0


def test_notice_shows_the_time_of_the_last_output() -> None:
    session = silent_session(Journal(), silent_for=3600)
    report(session)
    since = fresh(session).stalled_since
    assert since is not None
    assert timedelta(seconds=3590) < timezone.now() - since < timedelta(seconds=3700)


@pytest.mark.parametrize(
    ("said", "is_stalled"),
    [
        ("Usage limit reached. Will resume automatically in 2 hours.", False),
        ("Usage limit reached. Waiting for the limit to reset.", False),
        ("Usage limit reached. Will resume automatically in 1 second.", True),
        ("Usage limit reached. Will resume automatically in 2 hours.\nI go on.", True),
        ("I am waiting for the build.", True),
    ],
)
def test_agent_that_waits_by_itself_for_its_limit_is_not_stalled(said: str, is_stalled: bool) -> None:
    session, journal = running_session(), Journal()
    Prompt.objects.create(session=session, message_id="p1", text="build", state="sending")
    ingest(session, [backdate(line, 1200) for line in (*journal.turn_begins("p1"), *journal.says(said))])
    assert report(fresh(session)) == int(is_stalled)
    assert (fresh(session).stalled_since is not None) is is_stalled

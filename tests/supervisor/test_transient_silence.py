"""A turn in which nothing is heard of the agent is shown as silent, and nothing is ended for it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from sessions_app.models import Prompt, SessionEvent, TaskSession, session_transaction
from sessions_app.services import intents
from sessions_app.services.status import session_status
from sessions_app.supervisor.interrupted_turns import interrupt_turn
from sessions_app.supervisor.watchdogs import report_stalled_turns
from tests.supervisor.journals import Journal, Line, hear
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


def ago(line: Line, seconds: float) -> Line:
    """The line, written so long ago."""
    return {**line, "ts": timezone.now().timestamp() - seconds}


def working(journal: Journal, silent_for: float) -> TaskSession:
    session = running_session()
    Prompt.objects.create(session=session, message_id="p1", text="build", state="sending")
    lines = [*journal.turn_begins("p1"), journal.tool("t1", title="make all")]
    hear(session, [ago(line, silent_for) for line in lines])
    return fresh(session)


def noticed(session: TaskSession) -> int:
    return report_stalled_turns({session.id: MINE})


def test_after_five_minutes_it_is_said_once_and_the_turn_goes_on() -> None:
    session = working(Journal(), silent_for=301)
    assert [noticed(session), noticed(session)] == [1, 0]
    said = last_payload(session, "session.run.stalled")
    assert said["unfinished_tools"] == ["make all"]
    assert session_status(fresh(session))["stalled_since"] == said["since"]
    assert runs(session) == [("p1", "running")]
    assert not session.intents.filter(done_at=None).exists()


def test_the_next_word_takes_the_notice_away_and_silence_is_said_again() -> None:
    journal = Journal()
    session = working(journal, silent_for=900)
    assert noticed(session) == 1
    hear(session, [ago(line, 400) for line in journal.says("still compiling")])
    assert "session.run.heard_again" in names(session)
    assert session_status(fresh(session))["stalled_since"] is None
    assert noticed(session) == 1


@pytest.mark.parametrize("ended_by", ["completion", "interruption"])
def test_the_end_of_the_turn_takes_it_away(ended_by: str) -> None:
    journal = Journal()
    session = working(journal, silent_for=301)
    noticed(session)
    if ended_by == "completion":
        hear(session, [journal.completes("p1")])
    else:
        with session_transaction(session.id) as transaction:
            interrupt_turn(transaction, "agentctl_gone")
    assert fresh(session).stalled_since is None


def test_what_users_ask_meanwhile_is_no_word_of_the_agent() -> None:
    session = working(Journal(), silent_for=301)
    intents.queue_prompt(session.id, "p2", "are you there?", make_user())
    assert noticed(session) == 1


def asks(journal: Journal) -> Line:
    return ago(journal.asks("q1"), 400)


@pytest.mark.parametrize("case", ["recently heard", "it asks", "at rest", "off", "another's"])
def test_no_notice_where_nothing_is_silent(case: str, settings: Any) -> None:
    journal = Journal()
    session = working(journal, silent_for=200 if case == "recently heard" else 400)
    if case == "it asks":
        hear(session, [asks(journal)])
    elif case == "at rest":
        hear(session, [ago(journal.completes("p1"), 400)])
    elif case == "off":
        settings.KANDEV_STALL_NOTICE = 0
    assert (report_stalled_turns({}) if case == "another's" else noticed(session)) == 0
    assert not SessionEvent.objects.filter(name="session.run.stalled").exists()


def test_one_that_has_lost_its_lease_says_nothing() -> None:
    session = working(Journal(), silent_for=400)
    change(execution_of(session), generation=99)
    assert noticed(session) == 0


def test_the_shown_time_is_that_of_the_last_word() -> None:
    session = working(Journal(), silent_for=3600)
    noticed(session)
    since = fresh(session).stalled_since
    assert since is not None
    assert timedelta(seconds=3590) < timezone.now() - since < timedelta(seconds=3700)

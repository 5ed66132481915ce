"""An agent that waits by itself inside its open turn: page and status say so, and until when."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from sessions_app.models import Prompt, TaskSession
from sessions_app.sessions.rules.situations import situation
from sessions_app.sessions.services.status import load_status, read_session
from sessions_app.supervisor import leases
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.rows import MINE, fresh, running_session
from tests.turns.test_silence import backdate

pytestmark = pytest.mark.django_db(transaction=True)
WAITS = "Usage limit reached. Will resume automatically in 2 hours."


def waiting_session(said: str = WAITS, *, ago: float = 60, tool_after: bool = False) -> tuple[TaskSession, Journal]:
    """Return a session in whose open turn the agent has said something ``ago`` seconds ago."""
    leases.register_supervisor(MINE.owner)
    leases.mark_first_sweep_done(MINE.owner)
    session, journal = running_session(), Journal()
    Prompt.objects.create(session=session, message_id="p1", text="build", state="sending")
    lines = [*journal.turn_begins("p1"), *journal.says(said)]
    if tool_after:
        lines.append(journal.tool("t1", title="make"))
    ingest(session, [backdate(line, ago) for line in lines])
    return fresh(session), journal


def test_page_and_status_say_until_when_the_agent_waits_by_itself() -> None:
    session, _ = waiting_session()
    reading = read_session(session)
    own_wait = reading.status.own_wait
    assert own_wait is not None
    assert own_wait["until"] is not None
    until = reading.facts.waits_by_itself_until
    assert until is not None
    assert abs(until - timezone.now() - timedelta(hours=2, seconds=-60)) < timedelta(minutes=1)
    shown = situation(reading.facts)
    assert f"waits until {until:%Y-%m-%d %H:%M:%S} UTC" in shown.text
    assert shown.action == "cancel"


def test_wait_without_a_time_is_shown_without_one() -> None:
    session, _ = waiting_session("Usage limit reached. Waiting for the limit to reset.")
    reading = read_session(session)
    assert reading.status.own_wait is not None
    assert reading.status.own_wait["until"] is None
    assert "waits for the end of a limit" in situation(reading.facts).text


def test_wait_that_is_said_at_the_end_of_a_long_turn_is_found() -> None:
    session, journal = waiting_session("word " * 40_000)
    ingest(session, [backdate(line, 30) for line in journal.says(f"\n{WAITS}")])
    assert load_status(fresh(session)).own_wait is not None


@pytest.mark.parametrize(
    ("said", "ago", "tool_after"),
    [
        ("I have begun.", 60, False),
        (f"{WAITS}\nI go on.", 60, False),
        (WAITS, 60, True),
        ("Usage limit reached. Will resume automatically in 2 seconds.", 1200, False),
        ("Usage limit reached. Waiting for the limit to reset.", 90_000, False),
    ],
    ids=["other text", "text after it", "tool after it", "long over", "for a day"],
)
def test_agent_that_does_not_wait_is_not_said_to(said: str, ago: float, tool_after: bool) -> None:
    session, _ = waiting_session(said, ago=ago, tool_after=tool_after)
    assert load_status(session).own_wait is None


def test_wait_ends_with_the_turn() -> None:
    session, journal = waiting_session()
    ingest(session, [journal.completes("p1")])
    assert load_status(fresh(session)).own_wait is None

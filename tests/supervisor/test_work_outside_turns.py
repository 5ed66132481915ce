"""Output that arrives although no turn is open shows that the agent works."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.utils import timezone

from executors_app.wire.protocol import JournalKind
from sessions_app.domain.states import WorkState
from sessions_app.models import TaskSession
from sessions_app.supervisor.watchdogs import OUTSIDE_QUIET, OUTSIDE_TOOL_QUIET, end_work_outside_turns
from tests.supervisor.journals import Journal, Line, ingest
from tests.supervisor.rows import MINE
from tests.supervisor.test_tool_calls_of_turns import session_with_prompts

pytestmark = pytest.mark.django_db


def after_a_turn() -> tuple[TaskSession, Journal]:
    session, journal = session_with_prompts("p1"), Journal()
    lines = [*journal.turn_begins("p1"), *journal.says("started"), journal.completes("p1")]
    ingest(session, lines)
    journal.seq += 10  # ten seconds later, by the clock of these lines
    return session, journal


def work_state(session: TaskSession) -> str:
    session.refresh_from_db()
    return str(session.work_state)


WORK: dict[str, Callable[[Journal], Line]] = {
    "text": lambda journal: journal.says("[bg 1]")[0],
    "tool": lambda journal: journal.tool("bg1", title="step"),
    "sub-agent": lambda journal: journal.line(JournalKind.MESSAGE_SUB_AGENT, text="x", sub_agent="Sub-agent 1"),
}


@pytest.mark.parametrize("kind", WORK)
def test_output_outside_a_turn_counts_as_work(kind: str) -> None:
    session, journal = after_a_turn()
    assert work_state(session) == WorkState.IDLE
    ingest(session, [WORK[kind](journal)])
    assert work_state(session) == WorkState.WORKING


def test_end_of_an_answer_after_its_turn_is_no_new_work() -> None:
    session, journal = session_with_prompts("p1"), Journal()
    ingest(session, [*journal.turn_begins("p1"), *journal.says("the ans"), journal.completes("p1")])
    ingest(session, journal.says("wer"))
    assert work_state(session) == WorkState.IDLE


def test_usage_report_outside_a_turn_is_no_work() -> None:
    session, journal = after_a_turn()
    ingest(session, [journal.line(JournalKind.USAGE, usage={"used": 3})])
    assert work_state(session) == WorkState.IDLE


def test_silence_ends_the_work_outside_a_turn() -> None:
    session, journal = after_a_turn()
    ingest(session, journal.says("[bg 1]"))
    held = {session.id: MINE}
    assert end_work_outside_turns(held) == 0
    TaskSession.objects.filter(id=session.id).update(updated_at=timezone.now() - 2 * OUTSIDE_QUIET)
    assert end_work_outside_turns(held) == 1
    assert work_state(session) == WorkState.IDLE


def test_open_tool_call_is_work_until_a_longer_silence() -> None:
    session, journal = after_a_turn()
    ingest(session, [journal.tool("bg1", title="make all", status="in_progress")])
    held, rows = {session.id: MINE}, TaskSession.objects.filter(id=session.id)
    rows.update(updated_at=timezone.now() - 2 * OUTSIDE_QUIET)
    assert end_work_outside_turns(held) == 0
    assert work_state(session) == WorkState.WORKING

    rows.update(updated_at=timezone.now() - 2 * OUTSIDE_TOOL_QUIET)
    assert end_work_outside_turns(held) == 1
    assert work_state(session) == WorkState.IDLE
    tool = session.messages.get(role="tool")
    assert (tool.payload["status"], tool.complete) == ("unfinished", True)


def test_silence_does_not_end_the_work_of_a_turn() -> None:
    session, journal = session_with_prompts("p1"), Journal()
    ingest(session, [*journal.turn_begins("p1"), *journal.says("working")])
    TaskSession.objects.filter(id=session.id).update(updated_at=timezone.now() - timedelta(hours=1))
    assert end_work_outside_turns({session.id: MINE}) == 0
    assert work_state(session) == WorkState.WORKING

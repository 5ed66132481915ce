"""Output that arrives although no turn is open shows that the agent works."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from executors_app.wire.protocol import JournalKind
from sessions_app.events import event_label
from sessions_app.kernel.rules.states import WorkState
from sessions_app.models import Prompt, TaskSession
from sessions_app.prompts.services import context_before, outside_work_evidence, snapshot_to_compare
from sessions_app.starts.outcomes import write_stopped
from sessions_app.stream.models import texts_of
from sessions_app.turns.events import OutsideWorkInterrupted
from sessions_app.turns.silence import OUTSIDE_QUIET, end_work_outside_turns
from tests.stream.test_tool_calls_of_turns import session_with_prompts
from tests.supervisor.journals import Journal, Line, ingest
from tests.supervisor.rows import MINE, change, fresh, last_payload, names

pytestmark = pytest.mark.django_db
CUT_OFF = OutsideWorkInterrupted.name


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


def test_silence_ends_work_that_release_1_0_recorded_without_a_turn() -> None:
    session, _ = after_a_turn()
    change(session, work_state=WorkState.WORKING)
    held = {session.id: MINE}
    assert end_work_outside_turns(held) == 0
    TaskSession.objects.filter(id=session.id).update(updated_at=timezone.now() - 2 * OUTSIDE_QUIET)
    assert end_work_outside_turns(held) == 1
    assert work_state(session) == WorkState.IDLE


def _leave_processes(session: TaskSession, journal: Journal, count: int = 1) -> None:
    change(session, launch_id="launch-1")
    processes = [{"command": f"npm run dev{number}", "since": "2026-01-31T12:00:00+00:00"} for number in range(count)]
    ingest(session, [journal.line("agent.processes", processes=processes, count=count)])


def _die(session: TaskSession, journal: Journal) -> None:
    ingest(session, [journal.exits()])


def _stop(session: TaskSession, _: Journal) -> None:
    write_stopped(session.id, MINE, "stopped")


ENDS: dict[str, Callable[[TaskSession, Journal], None]] = {"death": _die, "stop": _stop}


@pytest.mark.parametrize("end", ENDS)
def test_work_outside_a_turn_that_is_cut_off_is_told_everywhere(end: str) -> None:
    session, journal = after_a_turn()
    _leave_processes(session, journal)
    ingest(session, [journal.tool("bg1", title="make all", status="in_progress")])

    ENDS[end](session, journal)

    row = fresh(session)
    message = row.messages.filter(role="status").last()
    assert message is not None
    expected = (
        "The agent was working outside a turn, and that work was cut off. Without a result: make all. "
        "Processes that it had left running ended with it: npm run dev0. The agent learns this with your next prompt."
    )
    assert texts_of([message])[message.id] == expected
    assert last_payload(row, CUT_OFF)["unfinished_tools"] == ["make all"]
    assert event_label(CUT_OFF, last_payload(row, CUT_OFF)).text.startswith(
        "Work outside a turn was cut off: the agent"
    )
    assert outside_work_evidence(row) == {"work_outside_turn": expected}
    note = context_before(row, Prompt(session=row, message_id="p2", text="go on"))
    assert "while you worked between two turns" in note
    assert "- make all" in note
    assert "- npm run dev0" in note


@pytest.mark.parametrize("end", ENDS)
def test_ended_background_processes_are_told_without_other_work(end: str) -> None:
    session, journal = after_a_turn()
    _leave_processes(session, journal, count=7)

    ENDS[end](session, journal)
    _stop(session, journal)

    row = fresh(session)
    (message,) = row.messages.filter(role="status")
    assert texts_of([message])[message.id].endswith(
        "npm run dev4; 2 more. The agent learns this with your next prompt."
    )
    assert "working" not in texts_of([message])[message.id]
    assert names(row).count(CUT_OFF) == 1
    note = context_before(row, Prompt(session=row, message_id="p2", text="go on"))
    assert "with it what you had left running" in note


@pytest.mark.parametrize("end", ENDS)
def test_processes_of_earlier_turns_that_end_in_a_turn_are_told(end: str) -> None:
    session, journal = after_a_turn()
    _leave_processes(session, journal)
    Prompt.objects.create(session=session, message_id="p2", text="now test it", state="sending")
    ingest(session, [*journal.turn_begins("p2"), journal.tool("t1", title="npm test", status="in_progress")])

    ENDS[end](session, journal)

    row = fresh(session)
    assert last_payload(row, CUT_OFF) == {
        "reason": last_payload(row, "session.run.interrupted")["reason"],
        "was_working": False,
        "unfinished_tools": [],
        "processes": ["npm run dev0"],
        "process_count": 1,
    }
    note = context_before(row, Prompt(session=row, message_id="p3", text="go on"))
    assert "in the middle of your last turn" in note
    assert "- npm test" in note
    assert "- npm run dev0" in note


@pytest.mark.parametrize(
    ("turn", "since"),
    [
        ({"snapshot_before": "a" * 40, "snapshot_after": "b" * 40}, "b" * 40),
        ({"snapshot_before": "a" * 40, "snapshot_after": None}, "a" * 40),
        ({"snapshot_before": None, "snapshot_after": None}, ""),
    ],
    ids=["changed something", "changed nothing", "unknown"],
)
def test_work_outside_a_turn_is_compared_with_the_end_of_the_turn(turn: dict[str, Any], since: str) -> None:
    session, journal = after_a_turn()
    session.runs.update(**turn)
    _leave_processes(session, journal)
    _die(session, journal)
    assert snapshot_to_compare(fresh(session)) == since


def test_end_of_an_earlier_agent_cuts_off_nothing_of_the_present_one() -> None:
    session, journal = after_a_turn()
    _leave_processes(session, journal)
    ingest(session, [{**journal.exits(), "launch_id": "launch-0"}])
    assert CUT_OFF not in names(session)


@pytest.mark.parametrize("end", ENDS)
def test_idle_agent_that_ends_had_no_work(end: str) -> None:
    session, journal = after_a_turn()
    change(session, launch_id="launch-1")
    ENDS[end](session, journal)
    assert CUT_OFF not in names(session)
    assert outside_work_evidence(fresh(session)) == {}


def test_retry_that_waits_is_no_work_outside_a_turn() -> None:
    session, journal = after_a_turn()
    change(session, launch_id="launch-1", work_state="working")
    Prompt.objects.create(session=session, message_id="retry:1", text="again", kind="retry")
    _die(session, journal)
    assert CUT_OFF not in names(session)


def test_silence_does_not_end_the_work_of_a_turn() -> None:
    session, journal = session_with_prompts("p1"), Journal()
    ingest(session, [*journal.turn_begins("p1"), *journal.says("working")])
    TaskSession.objects.filter(id=session.id).update(updated_at=timezone.now() - timedelta(hours=1))
    assert end_work_outside_turns({session.id: MINE}) == 0
    assert work_state(session) == WorkState.WORKING

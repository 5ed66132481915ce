"""Turns that an agent begins without a prompt: which output begins one, what it holds back, and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from asgiref.sync import sync_to_async
from django.utils import timezone

from executors_app.models import ExecutorRunning
from executors_app.wire.errors import AgentctlUnreachable
from executors_app.wire.protocol import AGENT_TURN_PREFIX, JournalKind
from sessions_app.events import event_label
from sessions_app.kernel.rules.states import PromptState, RunState, SessionState, TurnOrigin, WorkState
from sessions_app.models import Prompt, TaskSession, Turn, session_transaction
from sessions_app.prompts.delivery import claim_next_prompt
from sessions_app.prompts.services import context_before
from sessions_app.recovery import continuity
from sessions_app.sessions.services import intents
from sessions_app.sessions.services.status import load_status
from sessions_app.starts.idle_sleep import idle_since
from sessions_app.starts.outcomes import write_stopped
from sessions_app.stream.models import texts_of
from sessions_app.turns.agent_turns import end_quiet_turns, sessions_past_limit
from sessions_app.turns.interruptions import end_cancelled_work
from sessions_app.turns.jobs import StallsJob
from sessions_app.turns.rules.agent_turns import (
    MAX_REFUSALS,
    OutsideLine,
    begins_turn,
    holds_prompts,
    quiet_limit,
    refusal_delay,
)
from sessions_app.turns.silence import report_stalled_turns
from tests.stream.test_tool_calls_of_turns import session_with_prompts
from tests.supervisor.journals import Journal, Line, ingest
from tests.supervisor.rows import MINE, change, fresh, last_payload, names, prompt_states, runs

database = pytest.mark.django_db
SECOND = timedelta(seconds=1)

# kind, facts, whether it begins a turn; without ``since_end`` a minute has passed
TEXT, THOUGHT, SUB = JournalKind.MESSAGE_AGENT, JournalKind.MESSAGE_THOUGHT, JournalKind.MESSAGE_SUB_AGENT
CALL, RESULT, ASKS = JournalKind.TOOL_CALL, JournalKind.TOOL_UPDATE, JournalKind.PERMISSION_REQUESTED
RULES: dict[str, tuple[str, dict[str, Any], bool]] = {
    "text": (TEXT, {}, True),
    "thought": (THOUGHT, {}, True),
    "text of a sub-agent": (SUB, {}, True),
    "new tool call": (CALL, {}, True),
    "update of an unknown call": (RESULT, {}, True),
    "usage": (JournalKind.USAGE, {}, False),
    "plan": (JournalKind.PLAN, {}, False),
    "processes": (JournalKind.AGENT_PROCESSES, {}, False),
    "settings": (JournalKind.AGENT_SETTINGS, {}, False),
    "text at once": (TEXT, {"since_end": 0 * SECOND}, False),
    "text after less than two seconds": (TEXT, {"since_end": 1.9 * SECOND}, False),
    "text after two seconds": (TEXT, {"since_end": 2 * SECOND}, True),
    "tool call at once": (CALL, {"since_end": SECOND}, False),
    "more of a late text": (TEXT, {"since_end": 5 * SECOND, "continues_text": True}, False),
    "more of a late text after ten seconds": (TEXT, {"since_end": 10 * SECOND, "continues_text": True}, True),
    "result of an earlier call, at any time": (RESULT, {"reports_earlier_call": True}, False),
    "request for permission": (ASKS, {}, True),
    "request for permission at once": (ASKS, {"since_end": 0 * SECOND}, True),
    "what is known from before a restart": (TEXT, {"is_replayed": True}, False),
    "text a little before the end, by the clock": (TEXT, {"since_end": -SECOND}, False),
    "text after the clock was set back": (TEXT, {"since_end": -60 * SECOND}, True),
}


@pytest.mark.parametrize("case", RULES)
def test_rule_says_which_output_begins_a_turn(case: str) -> None:
    kind, facts, expected = RULES[case]
    assert begins_turn(OutsideLine(kind, **{"since_end": 60 * SECOND, **facts})) is expected


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, 10),
        ({"has_open_tool": True}, 600),
        ({"announces_end": True}, 600),
        ({"has_open_tool": True, "hold_limit": 5 * SECOND}, 10),
        ({"has_open_tool": True, "hold_limit": 0 * SECOND}, 1800),
    ],
    ids=["text", "open tool call", "announces ends", "short limit", "no limit"],
)
def test_rule_says_which_silence_ends_such_a_turn(facts: dict[str, Any], expected: int) -> None:
    usual = {"has_open_tool": False, "announces_end": False, "quiet": 10 * SECOND, "hold_limit": 600 * SECOND}
    assert quiet_limit(**{**usual, **facts}) == expected * SECOND


@pytest.mark.parametrize(
    ("since_begin", "is_waiting", "limit", "expected"),
    [(1, False, 60, True), (60, False, 60, False), (61, True, 60, True), (0, False, 0, False)],
    ids=["young", "past the limit", "waits for an answer", "holds nothing"],
)
def test_rule_says_how_long_prompts_wait(since_begin: int, is_waiting: bool, limit: int, expected: bool) -> None:
    held = holds_prompts(since_begin=since_begin * SECOND, is_waiting=is_waiting, hold_limit=limit * SECOND)
    assert held is expected


def after_a_turn() -> tuple[TaskSession, Journal]:
    """Return a session whose turn ended ten seconds ago, by the clock of its journal."""
    session, journal = session_with_prompts("p1"), Journal()
    session.intents.all().delete()  # the start is over
    ingest(session, [*journal.turn_begins("p1"), *journal.says("started"), journal.completes("p1")])
    journal.seq += 10
    return session, journal


def working_alone() -> tuple[TaskSession, Journal, Turn]:
    session, journal = after_a_turn()
    ingest(session, journal.says("[bg 1]"))
    Turn.objects.filter(id=own_turn(session).id).update(started_at=timezone.now())
    return fresh(session), journal, own_turn(session)


def own_turn(session: TaskSession) -> Turn:
    return session.runs.get(origin=TurnOrigin.AGENT)


def age(session: TaskSession, seconds: float) -> None:
    TaskSession.objects.filter(id=session.id).update(updated_at=timezone.now() - timedelta(seconds=seconds))


FIRST_LINES: dict[str, Callable[[Journal], Line]] = {
    "text": lambda journal: journal.says("[bg 1]")[0],
    "tool call": lambda journal: journal.tool("bg1", title="step"),
    "sub-agent": lambda journal: journal.line(JournalKind.MESSAGE_SUB_AGENT, text="x", sub_agent="Sub-agent 1"),
    "permission": lambda journal: journal.requests_permission("q1"),
}


@database
@pytest.mark.parametrize("kind", FIRST_LINES)
def test_first_activity_outside_a_turn_begins_a_turn_of_the_agent(kind: str) -> None:
    session, journal = after_a_turn()

    ingest(session, [FIRST_LINES[kind](journal)])

    turn = own_turn(session)
    assert turn.message_id.startswith(AGENT_TURN_PREFIX)
    assert (turn.prompt_id, turn.request_digest, turn.ended_at) == (None, None, None)
    assert (fresh(session).state, fresh(session).work_state) == (SessionState.RUNNING, WorkState.WORKING)
    started = last_payload(session, "session.run.started")
    assert started["origin"] == "agent"
    assert event_label("session.run.started", started).text == "The agent began to work on its own"


@database
def test_request_outside_a_turn_waits_in_the_turn_of_the_agent() -> None:
    session, journal = after_a_turn()
    ingest(session, [journal.requests_permission("q1")])
    assert own_turn(session).state == RunState.WAITING
    assert session.permissions.get().run_id == own_turn(session).id


@database
def test_late_text_keeps_its_old_turn_until_a_pause() -> None:
    session, journal = session_with_prompts("p1"), Journal()
    ingest(session, [*journal.turn_begins("p1"), *journal.says("the ans"), journal.completes("p1")])
    for _ in range(8):  # one second each, by the clock of the lines
        ingest(session, journal.says("wer"))
    assert runs(session) == [("p1", "completed")]
    assert fresh(session).work_state == WorkState.IDLE

    journal.seq += 10
    ingest(session, journal.says("and more"))
    assert own_turn(session).state == RunState.RUNNING


@database
def test_result_of_an_earlier_call_keeps_its_old_turn() -> None:
    session, journal = session_with_prompts("p1"), Journal()
    ingest(session, [*journal.turn_begins("p1"), journal.tool("t1", title="make"), journal.completes("p1")])
    journal.seq += 600
    ingest(session, [journal.line(JournalKind.TOOL_UPDATE, tool_call_id="t1", status="completed", raw_output="ok")])
    assert runs(session) == [("p1", "completed")]
    assert session.messages.get(role="tool").payload["status"] == "completed"


@database
def test_greeting_before_the_first_prompt_begins_no_turn() -> None:
    session, journal = session_with_prompts(), Journal()
    ingest(session, journal.says("Hello!"))
    assert runs(session) == []


@database
def test_text_that_is_replayed_after_a_restart_begins_no_turn() -> None:
    session, journal = after_a_turn()
    ingest(session, [journal.line(JournalKind.MESSAGE_AGENT, text="started", may_be_replayed=True)])
    assert runs(session) == [("p1", "completed")]
    ingest(session, [journal.line(JournalKind.MESSAGE_AGENT, text="Something new", may_be_replayed=True)])
    assert own_turn(session).state == RunState.RUNNING


@database
def test_status_shows_the_agent_as_working() -> None:
    session, _, _ = working_alone()
    status = load_status(session)
    assert (status.state, status.derived_status, status.work_state) == ("RUNNING", "running", "working")


@database
def test_silence_ends_the_turn_of_the_agent() -> None:
    session, _, turn = working_alone()
    held = {session.id: MINE}
    assert end_quiet_turns(held) == 0
    age(session, 11)

    assert end_quiet_turns(held) == 1

    turn.refresh_from_db()
    assert (turn.state, turn.reason, turn.stop_reason) == ("completed", "quiet", None)
    assert (fresh(session).state, fresh(session).work_state) == (SessionState.WAITING_FOR_INPUT, WorkState.IDLE)
    label = event_label("session.run.completed", last_payload(session, "session.run.completed"))
    assert label.text == "The agent’s own work counts as ended: nothing more has arrived"
    assert end_quiet_turns(held) == 0


class Stream:
    """A stream that has logged line 7; ``newest`` is the newest line of its agentctl, None if that is unreachable."""

    def __init__(self, session: TaskSession, newest: int | None):
        self.session_id, self.lease, self.newest, self.client = session.id, MINE, newest, self
        self.ended, self.age = False, 3600.0

    async def status(self, timeout: float) -> dict[str, Any]:
        if self.newest is None:
            raise AgentctlUnreachable("no answer")
        return {"journal": {"epoch": "e", "last_seq": self.newest}}

    async def wait_until_logged(self, epoch: str, seq: int, timeout: float) -> bool:
        return seq <= 7


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("newest", "state"),
    [(7, RunState.COMPLETED), (8, RunState.RUNNING), (None, RunState.RUNNING)],
    ids=["everything is read", "lines are still to be read", "unreachable"],
)
async def test_silence_ends_a_turn_only_if_the_whole_journal_was_read(newest: int | None, state: RunState) -> None:
    session, _, turn = await sync_to_async(working_alone)()
    await sync_to_async(age)(session, 60)

    async def database(act: Callable[..., Any], *values: Any) -> Any:
        return await sync_to_async(act)(*values)

    registry = SimpleNamespace(streams={session.id: Stream(session, newest)}, database=database)
    await StallsJob(cast("Any", SimpleNamespace(registry=registry)))._check_agent_turns()

    await turn.arefresh_from_db()
    assert turn.state == state


@database
def test_open_tool_call_is_work_until_a_longer_silence() -> None:
    session, journal, turn = working_alone()
    ingest(session, [journal.tool("bg1", title="make all", status="in_progress")])
    age(session, 60)
    assert end_quiet_turns({session.id: MINE}) == 0

    age(session, 1801)
    assert end_quiet_turns({session.id: MINE}) == 1
    tool = session.messages.get(role="tool")
    assert (tool.payload["status"], tool.complete) == ("unfinished", True)
    turn.refresh_from_db()
    assert turn.state == RunState.COMPLETED


@database
def test_turn_that_waits_for_an_answer_is_not_ended_by_silence() -> None:
    session, journal, turn = working_alone()
    ingest(session, [journal.requests_permission("q1")])
    age(session, 7200)
    assert end_quiet_turns({session.id: MINE}) == 0
    turn.refresh_from_db()
    assert turn.state == RunState.WAITING


@database
def test_agent_announces_the_end_of_its_own_turn() -> None:
    session, journal, turn = working_alone()
    ingest(session, [journal.line(JournalKind.AGENT_TURN_ENDED, stop_reason="end_turn")])
    turn.refresh_from_db()
    assert (turn.state, turn.reason, turn.stop_reason) == ("completed", "announced", "end_turn")

    journal.seq += 10
    ingest(session, journal.says("again"))
    age(session, 60)
    assert end_quiet_turns({session.id: MINE}) == 0, "this agent says when it has finished"


@database
def test_announced_end_ends_no_turn_of_a_prompt() -> None:
    session, journal = session_with_prompts("p1"), Journal()
    ingest(session, [*journal.turn_begins("p1"), journal.line(JournalKind.AGENT_TURN_ENDED)])
    assert runs(session) == [("p1", "running")]


@database
def test_silence_of_the_agents_own_turn_is_no_stall() -> None:
    session, _, turn = working_alone()
    Turn.objects.filter(id=turn.id).update(started_at=timezone.now() - timedelta(hours=1))
    session.events.update(at=timezone.now() - timedelta(hours=1))
    assert report_stalled_turns({session.id: MINE}) == 0


def claim(session: TaskSession) -> str | None:
    found = claim_next_prompt(session.id, MINE, "epoch-1", frozenset())
    return found.message_id if found else None


@database
def test_queued_prompt_waits_for_the_end_of_the_agents_own_turn() -> None:
    session, journal, _ = working_alone()
    Prompt.objects.create(session=session, message_id="p2", text="next")
    assert claim(session) is None
    ingest(session, [journal.line(JournalKind.AGENT_TURN_ENDED)])
    assert claim(session) == "p2"


@database
def test_prompt_is_delivered_when_the_limit_of_the_hold_has_passed() -> None:
    session, journal, turn = working_alone()
    Prompt.objects.create(session=session, message_id="p2", text="next")
    assert sessions_past_limit([session.id]) == []
    Turn.objects.filter(id=turn.id).update(recorded_at=timezone.now() - timedelta(minutes=31))
    assert sessions_past_limit([session.id]) == [session.id]

    assert claim(session) == "p2"
    ingest(session, journal.turn_begins("p2"))

    assert sorted(state for _, state in runs(session)) == ["completed", "completed", "running"]
    turn.refresh_from_db()
    assert turn.reason == "superseded"


@database
@pytest.mark.parametrize("skew", [timedelta(days=1), timedelta(days=-1)], ids=["ahead", "behind"])
def test_wrong_clock_of_the_agents_machine_changes_no_limit_of_the_hold(skew: timedelta) -> None:
    session, journal = after_a_turn()
    Turn.objects.filter(session=session).update(ended_at=timezone.now() + skew - timedelta(minutes=1))
    line = {**journal.says("[bg 1]")[0], "ts": (timezone.now() + skew).timestamp()}
    ingest(session, [line])
    turn = own_turn(session)
    assert abs(turn.started_at - timezone.now() - skew) < timedelta(hours=1)
    Prompt.objects.create(session=session, message_id="p2", text="next")
    assert (claim(session), sessions_past_limit([session.id])) == (None, [])
    Turn.objects.filter(id=turn.id).update(recorded_at=timezone.now() - timedelta(minutes=31))
    assert (sessions_past_limit([session.id]), claim(session)) == ([session.id], "p2")


@database
def test_hold_of_a_turn_that_an_earlier_release_has_recorded_is_measured_by_its_start() -> None:
    session, _, turn = working_alone()
    Prompt.objects.create(session=session, message_id="p2", text="next")
    Turn.objects.filter(id=turn.id).update(recorded_at=None)
    assert (claim(session), sessions_past_limit([session.id])) == (None, [])
    Turn.objects.filter(id=turn.id).update(started_at=timezone.now() - timedelta(minutes=31))
    assert (sessions_past_limit([session.id]), claim(session)) == ([session.id], "p2")


@database
def test_cancel_ends_the_agents_own_turn_and_its_hold() -> None:
    session, journal, turn = working_alone()
    ingest(session, [journal.requests_permission("q1")])
    assert intents.request_cancel(session.id, None)
    assert session.intents.get(kind="cancel").payload == {"message_id": turn.message_id}

    assert end_cancelled_work(session.id, MINE, turn.message_id)

    turn.refresh_from_db()
    assert (turn.state, turn.reason) == ("cancelled", "cancelled")
    assert session.permissions.get().state == "expired"
    assert fresh(session).state == SessionState.WAITING_FOR_INPUT
    assert not end_cancelled_work(session.id, MINE, turn.message_id), "repeated after a crash, it changes nothing"


@database
def test_agent_at_work_on_its_own_is_not_idle() -> None:
    session, _, _ = working_alone()
    with session_transaction(session.id) as transaction:
        assert transaction.open_turn is not None
        assert idle_since(transaction) is not None
    assert fresh(session).work_state == WorkState.WORKING


def _die(session: TaskSession, journal: Journal) -> None:
    ingest(session, [journal.exits()])


def _stop(session: TaskSession, _: Journal) -> None:
    write_stopped(session.id, MINE, "stopped")


ENDS: dict[str, tuple[Callable[[TaskSession, Journal], None], str]] = {
    "death": (_die, "agent_exited"),
    "stop": (_stop, "stopped"),
}


@database
@pytest.mark.parametrize("end", ENDS)
def test_agents_own_turn_is_interrupted_with_the_agent_and_never_continued(end: str) -> None:
    session, journal, turn = working_alone()
    ingest(session, [journal.tool("bg1", title="make all", status="in_progress")])
    act, _ = ENDS[end]

    act(session, journal)

    turn.refresh_from_db()
    assert turn.state == RunState.INTERRUPTED
    assert last_payload(session, "session.run.interrupted")["unfinished_tools"] == ["make all"]
    assert prompt_states(session) == {"p1": "done"}, "nobody prompted it, so nothing is sent"
    note = context_before(fresh(session), Prompt(session=session, message_id="p2", text="go on"))
    assert "while you worked between two turns" in note
    assert "- make all" in note


@database
def test_interruption_is_written_once() -> None:
    session, journal, _ = working_alone()
    _die(session, journal)
    _stop(session, journal)
    assert names(session).count("session.run.interrupted") == 1


@database
def test_agents_own_turns_are_no_requests_of_its_conversation() -> None:
    session, journal, _ = working_alone()
    ingest(session, [journal.line(JournalKind.AGENT_TURN_ENDED)])
    assert continuity.count_requests(session) == 1
    assert len(continuity.load_requests(session).completed) == 1
    assert continuity.completed_turns(session.id).count() == 1


@database
def test_lines_that_are_read_again_begin_no_second_turn() -> None:
    session, journal = after_a_turn()
    lines = journal.says("[bg 1]", "[bg 2]")
    ingest(session, lines)
    ingest(session, lines)
    assert session.runs.filter(origin=TurnOrigin.AGENT).count() == 1
    assert PromptState.QUEUED not in prompt_states(session).values()
    assert ExecutorRunning.objects.get(session_id=session.id).journal_seq == journal.seq


def refuse(session: TaskSession, journal: Journal, message_id: str) -> None:
    """Let the agent refuse a prompt because it is busy."""
    failure = {"code": "agent_busy", "message": "already processing a prompt"}
    begin = journal.turn_begins(message_id)
    ingest(session, [*begin, journal.line(JournalKind.TURN_FAILED, message_id=message_id, **failure)])


def refused_prompt(**values: Any) -> tuple[TaskSession, Journal]:
    session, journal = after_a_turn()
    Prompt.objects.create(session=session, message_id="p2", text="next", state="sending", **values)
    refuse(session, journal, "p2")
    return fresh(session), journal


def statuses(session: TaskSession) -> list[str]:
    rows = session.messages.filter(role="status").order_by("seq")
    return list(texts_of(list(rows)).values())


@database
def test_prompt_that_a_busy_agent_refuses_is_queued_again_as_one_new_row() -> None:
    session, _ = refused_prompt()

    row = Prompt.objects.get(session=session, state=PromptState.QUEUED)
    assert (row.text, row.kind, row.trouble, row.attempt) == ("next", "retry", "agent_busy", 0)
    assert Prompt.objects.get(message_id="p2").resent_as == row
    assert prompt_states(session)["p2"] == "done"
    assert session.runs.get(message_id="p2").reason == "agent_busy"
    assert own_turn(session).state == RunState.RUNNING, "the refusal shows that the agent works"
    assert (fresh(session).state, fresh(session).work_state) == ("RUNNING", "working")
    (told,) = statuses(session)
    assert told.startswith("The agent is working on its own and did not take the prompt. It is sent again when")
    assert told.endswith("It says: already processing a prompt")
    failed = last_payload(session, "session.run.failed")
    assert "did not take the prompt" in event_label("session.run.failed", failed).text


@database
def test_refused_prompt_is_due_when_the_agent_announces_the_end() -> None:
    session, journal = refused_prompt()
    Turn.objects.filter(id=own_turn(session).id).update(started_at=timezone.now())
    row = Prompt.objects.get(session=session, state=PromptState.QUEUED)
    assert row.not_before is not None
    assert not row.is_due
    assert claim(session) is None

    ingest(session, [journal.line(JournalKind.AGENT_TURN_ENDED)])

    assert fresh(session).work_state == WorkState.WORKING, "the prompt is still to be answered"
    assert claim(session) == row.message_id


@database
def test_prompt_that_is_refused_for_too_long_fails() -> None:
    session, journal = refused_prompt()
    for _ in range(MAX_REFUSALS):
        row = Prompt.objects.filter(session=session, state=PromptState.QUEUED).first()
        if row is None:
            break
        Prompt.objects.filter(pk=row.pk).update(state=PromptState.SENDING)
        refuse(session, journal, row.message_id)

    assert PromptState.QUEUED not in prompt_states(session).values()
    assert len(statuses(session)) == 2, "the repeated refusals are told once"
    assert statuses(session)[-1].startswith("The agent did not take this prompt")


@database
@pytest.mark.parametrize(
    ("kind", "values"), [("check", {"kind": "check"}), ("stopped", {})], ids=["memory check", "stopped"]
)
def test_refused_prompt_is_not_given_again_if_nobody_waits_for_it(kind: str, values: dict[str, Any]) -> None:
    session, journal = after_a_turn()
    if kind == "stopped":
        change(session, desired_state="stopped")
    Prompt.objects.create(session=session, message_id="p2", text="next", state="sending", **values)
    refuse(session, journal, "p2")
    assert PromptState.QUEUED not in prompt_states(session).values()


@database
def test_refused_prompt_gives_back_the_context_that_it_carried() -> None:
    session, journal = after_a_turn()
    interrupted = {"run_id": "r", "message_id": "p1", "tools": ["make all"], "outside": True}
    told = {"interruption": interrupted, "workspace_notes": ["A file was lost."], "workspace_notes_sent": 1}
    change(session, metadata={**session.metadata, **told, "told_with": "p2"})
    Prompt.objects.create(session=session, message_id="p2", text="next", state="sending")
    ingest(session, journal.turn_begins("p2"))
    assert context_before(fresh(session), Prompt(session=session, message_id="p3", text="x")) == ""

    line = journal.line(JournalKind.TURN_FAILED, message_id="p2", code="agent_busy", message="busy")
    ingest(session, [line])

    again = Prompt(session=session, message_id="p3", text="x")
    assert "- make all" in context_before(fresh(session), again)
    assert "A file was lost." in context_before(fresh(session), again)


@database
def test_session_that_has_ended_meanwhile_gets_no_turn_by_a_refusal() -> None:
    session, journal = after_a_turn()
    Prompt.objects.create(session=session, message_id="p2", text="next", state="sending")
    ingest(session, journal.turn_begins("p2"))
    change(session, state=SessionState.COMPLETED)

    ingest(session, [journal.line(JournalKind.TURN_FAILED, message_id="p2", code="agent_busy", message="busy")])

    assert not session.runs.filter(state__in=[RunState.RUNNING, RunState.WAITING]).exists()


@database
def test_refused_prompt_is_no_request_of_the_agents_conversation() -> None:
    session, _ = refused_prompt()
    assert continuity.count_requests(session) == 1


@pytest.mark.parametrize(("refusals", "seconds"), [(0, 10), (1, 20), (4, 160), (5, 300), (19, 300)])
def test_delay_before_a_refused_prompt_grows_to_five_minutes(refusals: int, seconds: int) -> None:
    assert refusal_delay(refusals) == seconds * SECOND


@database
def test_note_that_arrives_after_a_refused_prompt_is_told_after_those_that_it_carried() -> None:
    session, journal = after_a_turn()
    change(session, metadata={**session.metadata, "workspace_notes": ["first"], "workspace_notes_sent": 1})
    change(session, metadata={**fresh(session).metadata, "told_with": "p2"})
    Prompt.objects.create(session=session, message_id="p2", text="next", state="sending")
    ingest(session, journal.turn_begins("p2"))
    change(session, metadata={**fresh(session).metadata, "workspace_notes": ["second", "first"]})

    ingest(session, [journal.line(JournalKind.TURN_FAILED, message_id="p2", code="agent_busy", message="busy")])

    assert fresh(session).metadata["workspace_notes"] == ["first", "second"]

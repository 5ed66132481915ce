"""A turn's row says who began it, what belongs to it, and how it ended."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from executors_app.wire.protocol import JournalKind
from executors_app.wire.replayed_texts import text_digest
from sessions_app.kernel.rules.states import PromptKind, TurnOrigin
from sessions_app.models import Prompt, Run, TaskSession, Turn
from sessions_app.recovery.rules.verification import ANSWER_LIMIT
from sessions_app.turns.models import newest_runs
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.rows import change, make_user, running_session

pytestmark = pytest.mark.django_db


def turn_of(session: TaskSession, message_id: str = "m1") -> Turn:
    return Turn.objects.get(session=session, message_id=message_id)


def queue(session: TaskSession, text: str = "do it", message_id: str = "m1", **values: Any) -> Prompt:
    row: Prompt = Prompt.objects.create(
        session=session, message_id=message_id, text=text, **{"state": "sending", **values}
    )
    return row


def seqs(session: TaskSession, name: str) -> list[int]:
    return list(session.events.filter(name=name).order_by("seq").values_list("seq", flat=True))


def test_run_is_the_contracts_name_of_a_turn() -> None:
    assert Run is Turn
    assert Turn._meta.db_table == "session_runs"


@pytest.mark.parametrize("batches", [1, 2, 100], ids=["one batch", "two batches", "a batch for each line"])
def test_turn_has_its_prompt_its_place_in_the_log_and_its_digests(batches: int) -> None:
    session, journal = running_session(), Journal()
    prompt = queue(session, "Add   a test")
    lines = [
        *journal.turn_begins("m1", "history before it. Add a test"),
        *journal.says("Let me ", "look."),
        journal.tool("t1", title="ls"),
        *journal.says("The test ", "is there."),
        journal.line(JournalKind.USAGE, usage={"input_tokens": 7, "output_tokens": 1}),
        journal.line(JournalKind.USAGE, usage={"output_tokens": 3}),
        journal.completes("m1"),
    ]
    size = -(-len(lines) // batches)
    for start in range(0, len(lines), size):
        ingest(session, lines[start : start + size])
    turn = turn_of(session)
    assert (turn.origin, turn.prompt) == (TurnOrigin.PROMPT, prompt)
    assert [turn.first_seq] == seqs(session, "session.run.started")
    assert [turn.last_seq] == seqs(session, "session.run.completed")
    messages = session.messages.filter(seq__gt=turn.first_seq, seq__lt=turn.last_seq)
    assert list(messages.order_by("seq").values_list("role", flat=True)) == ["user", "agent", "tool", "agent"]
    assert (turn.state, turn.stop_reason) == ("completed", "end_turn")
    assert turn.usage == {"input_tokens": 7, "output_tokens": 3}
    assert turn.request_digest == text_digest("add a test")
    assert turn.answer_digest == text_digest("The test is there.")


@pytest.mark.parametrize(
    ("kind", "by_user", "origin"),
    [
        (PromptKind.USER, False, TurnOrigin.PROMPT),
        (PromptKind.WAIT, False, TurnOrigin.PROMPT),
        (PromptKind.CONTINUE, True, TurnOrigin.PROMPT),
        (PromptKind.CONTINUE, False, TurnOrigin.KANDEV),
        (PromptKind.RETRY, False, TurnOrigin.KANDEV),
        (PromptKind.CHECK, False, TurnOrigin.KANDEV),
    ],
)
def test_turn_says_who_began_it(kind: PromptKind, by_user: bool, origin: TurnOrigin) -> None:
    session = running_session()
    queue(session, kind=kind, by=make_user() if by_user else None)
    ingest(session, [Journal().accepted("m1", prompt_kind=kind)])
    assert turn_of(session).origin == origin


def test_turn_of_a_prompt_that_the_ledger_lacks_has_no_prompt() -> None:
    session = running_session()
    ingest(session, Journal().turn_begins("m1", "do it"))
    turn = turn_of(session)
    assert (turn.prompt, turn.origin, turn.request_digest) == (None, TurnOrigin.PROMPT, text_digest("do it"))


def test_each_turn_of_a_batch_has_its_own_answer_and_figures() -> None:
    session, journal = running_session(), Journal()
    for message_id in ("m1", "m2"):
        queue(session, message_id=message_id)
    lines = [*journal.turn_begins("m1"), *journal.says("one"), journal.line(JournalKind.USAGE, usage={"used": 1})]
    lines += [journal.completes("m1"), *journal.turn_begins("m2"), journal.tool("t1"), journal.completes("m2")]
    ingest(session, lines)
    first, second = turn_of(session), turn_of(session, "m2")
    assert (first.answer_digest, first.usage) == (text_digest("one"), {"context_used": 1})
    assert (second.answer_digest, second.usage) == (None, {})


def test_answer_beyond_the_limit_has_no_digest() -> None:
    session, journal = running_session(), Journal()
    ingest(session, [*journal.turn_begins("m1"), *journal.says("a" * ANSWER_LIMIT)])
    ingest(session, [*journal.says("b"), journal.completes("m1")])
    assert turn_of(session).answer_digest is None


def test_turn_has_the_snapshots_before_and_after_it() -> None:
    session, journal = running_session(), Journal()
    ingest(session, [journal.snapshot("a" * 40, "asked"), *journal.turn_begins("m1")])
    assert turn_of(session).snapshot_before == "a" * 40
    ingest(session, [journal.snapshot("b" * 40, "turn_start"), journal.completes("m1")])
    assert (turn_of(session).snapshot_before, turn_of(session).snapshot_after) == ("a" * 40, None)
    ingest(session, [journal.snapshot("c" * 40, "turn_end"), *journal.turn_begins("m2")])
    assert turn_of(session).snapshot_after == "c" * 40
    assert turn_of(session, "m2").snapshot_before == "c" * 40
    ingest(session, [journal.completes("m2"), journal.snapshot("d" * 40, "shutdown")])
    assert turn_of(session, "m2").snapshot_after is None


def test_turn_without_a_snapshot_says_so() -> None:
    session = running_session()
    ingest(session, Journal().turn_begins("m1"))
    assert turn_of(session).snapshot_before == ""


@pytest.mark.parametrize(
    ("end", "state", "reason", "stop_reason"),
    [
        ({"kind": "turn.completed", "stop_reason": "max_tokens"}, "completed", "max_tokens", "max_tokens"),
        ({"kind": "turn.completed", "stop_reason": "end_turn", "output": False}, "failed", "no_output", "end_turn"),
        ({"kind": "turn.completed", "stop_reason": "refusal"}, "failed", "turn_refused", "refusal"),
        ({"kind": "turn.failed", "code": "agent_error", "message": "No."}, "failed", "agent_error", None),
        (
            {"kind": "turn.cancelled", "stop_reason": "cancelled", "agent_stop_reason": "end_turn"},
            "cancelled",
            "cancelled",
            "end_turn",
        ),
        ({"kind": "turn.cancelled", "stop_reason": "cancelled"}, "cancelled", "cancelled", None),
        (
            {"kind": "turn.cancelled", "stop_reason": "cancelled", "agent_stop_reason": ""},
            "cancelled",
            "cancelled",
            None,
        ),
        (
            {"kind": "turn.cancelled", "stop_reason": "cancelled", "by_agent": True},
            "cancelled",
            "cancelled_by_agent",
            None,
        ),
        ({"kind": "turn.completed", "stop_reason": ""}, "completed", "no_stop_reason", None),
    ],
)
def test_end_of_a_turn_keeps_the_agents_own_reason(
    end: dict[str, Any], state: str, reason: str, stop_reason: str | None
) -> None:
    session, journal = running_session(), Journal()
    ingest(session, [*journal.turn_begins("m1"), journal.line(message_id="m1", **end)])
    turn = turn_of(session)
    assert (turn.state, turn.reason, turn.stop_reason) == (state, reason, stop_reason)


def test_superseded_and_interrupted_turns_end_in_the_log_too() -> None:
    session, journal = running_session(), Journal()
    ingest(session, journal.turn_begins("m1"))
    ingest(session, journal.turn_begins("m2"))
    ingest(session, [journal.exits("m2")])
    assert [turn_of(session).last_seq] == seqs(session, "session.run.completed")
    assert [turn_of(session, "m2").last_seq] == seqs(session, "session.run.interrupted")


def test_turn_of_the_release_before_is_completed_without_what_is_unknown() -> None:
    session, journal = running_session(), Journal()
    ingest(session, [*journal.turn_begins("m1"), *journal.says("done"), journal.tool("t1")])
    unknown = {"origin": None, "prompt": None, "first_seq": None, "request_digest": None, "snapshot_before": None}
    change(turn_of(session), **unknown)
    ingest(session, [journal.completes("m1")])
    turn = turn_of(session)
    assert (turn.state, turn.first_seq, turn.answer_digest) == ("completed", None, None)
    assert [turn.last_seq] == seqs(session, "session.run.completed")


COLUMNS_OF_RELEASE_1_0 = (
    *("id", "session_id", "message_id", "state", "has_process", "wait_kind", "wait_id", "wait_reason", "deadline_at"),
    *("waited", "reason", "since_seq", "started_at", "ended_at"),
)


def test_process_of_the_release_before_can_still_write_a_row() -> None:
    session = running_session()
    ingest(session, Journal().turn_begins("m1"))
    names = ", ".join(COLUMNS_OF_RELEASE_1_0)
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE TEMPORARY TABLE earlier AS SELECT {names} FROM session_runs")  # noqa: S608
        cursor.execute("DELETE FROM session_runs")
        cursor.execute(f"INSERT INTO session_runs ({names}) SELECT {names} FROM earlier")  # noqa: S608
        cursor.execute("DROP TABLE earlier")
    turn = turn_of(session)
    assert (turn.state, turn.origin, turn.first_seq, turn.snapshot_before) == ("running", None, None, None)
    assert turn.usage == {}


def test_figures_cost_one_statement_in_each_batch() -> None:
    session, journal = running_session(), Journal()
    ingest(session, [*journal.turn_begins("m1"), *journal.says("hello")])
    counts = []
    for repeated in (1, 50):
        lines = [journal.line(JournalKind.USAGE, usage={"used": repeated + at}) for at in range(repeated)]
        with CaptureQueriesContext(connection) as queries:
            ingest(session, lines)
        counts.append(len(queries))
    assert counts[0] == counts[1]


# --- the newest run ---


def runs_of(session: TaskSession, *minutes: int) -> list[Turn]:
    began = timezone.now()
    return [
        Turn.objects.create(
            session=session, message_id=f"m{at}", state="completed", started_at=began + timedelta(minutes=at)
        )
        for at in minutes
    ]


def test_newest_run_of_each_session_is_the_one_that_started_last() -> None:
    busy, quiet, new = running_session(), running_session(), running_session()
    _, latest, _ = runs_of(busy, 1, 3, 2)
    (only,) = runs_of(quiet, 5)
    assert newest_runs([busy.id, quiet.id, new.id]) == {busy.id: latest, quiet.id: only}
    assert newest_runs([quiet.id]) == {quiet.id: only}


def test_newest_run_has_the_columns_that_its_reader_names() -> None:
    session = running_session()
    runs_of(session, 1)
    run = newest_runs([session.id], ["state"])[session.id]
    assert (run.state, run.session_id) == ("completed", session.id)
    assert "usage" in run.get_deferred_fields()


@pytest.mark.embedded
def test_newest_run_of_each_session_is_read_from_an_index() -> None:
    session = running_session()
    runs_of(session, 1, 2)
    with CaptureQueriesContext(connection) as queries:
        newest_runs([session.id])
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN QUERY PLAN {queries[0]['sql']}")
        plan = " / ".join(str(row[3]) for row in cursor.fetchall())
    assert "run_newest_of_session" in plan
    assert "ORDER BY" not in plan, "nothing is sorted, however many runs a session has had"

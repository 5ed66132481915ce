"""The ledger has one row for each turn that has ended, whatever happens to its session."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.utils import timezone

from executors_app.models import AgentProfile
from executors_app.wire.protocol import JournalKind
from sessions_app.kernel.transactions import session_transaction
from sessions_app.models import ContinuityReceipt, Prompt, TaskSession, Turn, TurnUsage
from sessions_app.turns.interruptions import interrupt_turn
from sessions_app.usage.models import local_day, record_turn_usage
from tests.portable.records import delete_sessions, export, run_import
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.rows import change, fresh, last_payload, make_user, running_session

pytestmark = pytest.mark.django_db


def session_of(agent_type: str = "openai_chat", **fields: Any) -> TaskSession:
    session = running_session(**{"launch_id": "first", **fields})
    AgentProfile.objects.filter(id=session.agent_profile_id).update(agent_type=agent_type)
    return fresh(session)


def run_turn(session: TaskSession, journal: Journal, message_id: str, **reported: Any) -> TurnUsage:
    """Let a turn report its figures and end; return its row."""
    lines = [*journal.turn_begins(message_id), *journal.says("done")]
    if reported:
        lines.append(journal.line(JournalKind.USAGE, usage=reported))
    ingest(session, [*lines, journal.completes(message_id)])
    return TurnUsage.objects.get(turn_id=Turn.objects.get(session=session, message_id=message_id).id)


def test_turn_is_written_down_with_its_team_task_member_and_day() -> None:
    session, journal = session_of(), Journal()
    sender = make_user("grace")
    Prompt.objects.create(session=session, message_id="m1", text="do it", state="sending", by=sender)
    row = run_turn(session, journal, "m1", prompt_tokens=10, completion_tokens=2)
    assert (row.team_id, row.task_id, row.session_id) == (session.task.team_id, session.task_id, session.id)
    assert (row.member, row.agent_type, row.tokens) == (sender, "openai_chat", 12)
    assert row.day == local_day(row.ended_at)
    assert last_payload(session, "session.run.completed")["counted"] == {
        "tokens": 12,
        "input_tokens": 10,
        "output_tokens": 2,
    }


def test_turn_that_nobody_prompted_belongs_to_the_owner() -> None:
    owner = make_user("grace")
    session = session_of(owner=owner)
    assert run_turn(session, Journal(), "m1").member == owner


def test_day_begins_in_the_zone_of_the_control_plane(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timezone, "get_default_timezone", lambda: ZoneInfo("Pacific/Auckland"))
    assert str(local_day(datetime(2026, 3, 1, 23, 0, tzinfo=UTC))) == "2026-03-02"


def test_turn_that_reports_nothing_is_counted_as_unknown() -> None:
    session, journal = session_of(), Journal()
    row = run_turn(session, journal, "m1")
    assert (row.tokens, row.cost, row.currency) == (None, None, "")
    assert "counted" not in last_payload(session, "session.run.completed")


def test_figures_of_an_agent_of_unknown_kind_are_not_summed() -> None:
    for kind in ("custom_acp", "gone"):
        assert run_turn(session_of(kind), Journal(), "m1", inputTokens=10, outputTokens=2).tokens is None


def test_interrupted_turn_is_counted_with_what_it_had_reported() -> None:
    session, journal = session_of(), Journal()
    ingest(session, [*journal.turn_begins("m1"), journal.line(JournalKind.USAGE, usage={"total_tokens": 5})])
    with session_transaction(session.id) as transaction:
        interrupt_turn(transaction, "agent_gone")
    assert TurnUsage.objects.get().tokens == 5


def test_counter_of_a_conversation_is_divided_among_its_turns() -> None:
    session, journal = session_of("codex_cli"), Journal()
    told = [run_turn(session, journal, f"m{at}", input_tokens=10 * at, output_tokens=at).tokens for at in (1, 3)]
    assert told == [11, 22]
    assert run_turn(session, journal, "silent").tokens is None
    change(session, launch_id="second")
    assert run_turn(session, journal, "after", input_tokens=50, output_tokens=5).tokens == 22


def test_counter_of_a_new_conversation_begins_at_zero() -> None:
    session, journal = session_of("codex_cli"), Journal()
    run_turn(session, journal, "m1", input_tokens=10, output_tokens=1)
    change(session, launch_id="second")
    receipt = {"kind": "injected", "verified": "pending", "after_seq": 1, "created_at": timezone.now()}
    ContinuityReceipt.objects.create(session=session, launch_id="second", **receipt)
    assert run_turn(session, journal, "m2", input_tokens=50, output_tokens=5).tokens == 55


def test_cost_of_a_process_continues_in_it_and_is_unknown_where_the_next_one_may_have_taken_it_over() -> None:
    session, journal = session_of("claude_code"), Journal()
    costs = [0.5, 0.75]
    told = [run_turn(session, journal, f"m{cost}", cost={"amount": cost, "currency": "USD"}).cost for cost in costs]
    assert told == [0.5, 0.25]
    change(session, launch_id="second")
    assert run_turn(session, journal, "m3", cost={"amount": 1.0, "currency": "USD"}).cost is None
    assert run_turn(session, journal, "m4", cost={"amount": 1.5, "currency": "USD"}).cost == 0.5
    change(session, launch_id="third")
    assert run_turn(session, journal, "m5", cost={"amount": 0.25, "currency": "USD"}).cost == 0.25


def test_counter_is_divided_in_the_order_of_the_turns_also_if_the_clock_is_set_back() -> None:
    session, journal = session_of("codex_cli"), Journal()
    ahead = run_turn(session, journal, "m1", input_tokens=10, output_tokens=1)
    TurnUsage.objects.filter(turn_id=ahead.turn_id).update(ended_at=timezone.now() + timedelta(hours=1))
    rows = [run_turn(session, journal, f"m{at}", input_tokens=10 * at, output_tokens=at) for at in (3, 6)]
    assert [row.tokens for row in rows] == [22, 33]
    for row in rows:
        assert row.day == local_day(Turn.objects.get(id=row.turn_id).ended_at)  # type: ignore[arg-type]


def test_turn_of_a_machine_whose_clock_is_ahead_counts_today() -> None:
    session, journal = session_of(), Journal()
    for line in (*journal.turn_begins("m1"), *journal.says("done"), journal.completes("m1")):
        ingest(session, [{**line, "ts": (timezone.now() + timedelta(days=2)).timestamp()}])
    row = TurnUsage.objects.get()
    assert row.ended_at <= timezone.now()
    assert row.day == local_day(row.ended_at)


def test_turn_of_a_machine_whose_clock_is_behind_is_not_counted_before_its_prompt() -> None:
    session, journal = session_of(), Journal()
    prompt = Prompt.objects.create(session=session, message_id="m1", text="do it", state="sending")
    for line in (*journal.turn_begins("m1"), *journal.says("done"), journal.completes("m1")):
        ingest(session, [{**line, "ts": float(journal.seq)}])  # in 1970
    assert TurnUsage.objects.get().day == local_day(prompt.created_at)


def test_first_counter_after_turns_of_an_earlier_release_is_unknown() -> None:
    session, journal = session_of("codex_cli"), Journal()
    run_turn(session, journal, "m1", input_tokens=10, output_tokens=1)
    TurnUsage.objects.all().delete()
    assert run_turn(session, journal, "m2", input_tokens=30, output_tokens=3).tokens is None
    assert run_turn(session, journal, "m3", input_tokens=40, output_tokens=4).tokens == 11


@pytest.mark.django_db(transaction=True)
def test_totals_survive_the_deletion_of_a_session_and_its_import(tmp_path: Path) -> None:
    session, journal = session_of("codex_cli"), Journal()
    for at in (1, 3):
        run_turn(session, journal, f"m{at}", input_tokens=10 * at, output_tokens=at)
    export(fresh(session), tmp_path / "record")
    before = list(TurnUsage.objects.values_list("turn_id", "tokens", "day", "member"))
    delete_sessions()
    assert list(TurnUsage.objects.values_list("turn_id", "tokens", "day", "member")) == before
    assert run_import(tmp_path / "record") == 0
    assert list(TurnUsage.objects.values_list("turn_id", "tokens", "day", "member")) == before
    delete_sessions()
    TurnUsage.objects.all().delete()
    assert run_import(tmp_path / "record") == 0
    found = TurnUsage.objects.values_list("turn_id", "tokens", "day", "agent_type")
    assert [(turn, tokens, day) for turn, tokens, day, _ in found] == [row[:3] for row in before]
    assert {name for *_, name in found} == {"codex_cli"}


def test_a_turn_is_written_down_once() -> None:
    session, journal = session_of(), Journal()
    row = run_turn(session, journal, "m1", total_tokens=5)
    ingest(session, [journal.completes("m1")])
    assert TurnUsage.objects.get() == row
    assert isinstance(row.turn_id, uuid.UUID)


@pytest.mark.parametrize("year", ["2999", "9999"])
def test_imported_turn_of_the_future_counts_today_and_later_turns_are_counted(year: str, tmp_path: Path) -> None:
    session = session_of()
    run_turn(session, Journal(), "m1", prompt_tokens=10, completion_tokens=2)
    export(fresh(session), tmp_path)
    [log] = tmp_path.glob("*.messages.jsonl")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    log.write_text("".join(json.dumps({**line, "ts": f"{year}-12-31T23:59:59.999999Z"}) + "\n" for line in lines))
    delete_sessions()
    TurnUsage.objects.all().delete()
    assert run_import(tmp_path) == 0
    row = TurnUsage.objects.get()
    assert row.ended_at <= timezone.now()
    assert row.day == local_day(row.ended_at)
    later = Turn.objects.create(session=fresh(session), message_id="m2", started_at=timezone.now())
    record_turn_usage(fresh(session), later, timezone.now())
    assert TurnUsage.objects.count() == 2

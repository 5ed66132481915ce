"""Status and receipts show what a resume costs: before it, and after its first turn."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone

from executors_app.models import ExecutorRunning
from sessions_app.models import ContinuityReceipt, TaskSession, Turn
from sessions_app.recovery.continuity import CONVERSATION_SINCE
from sessions_app.recovery.services.assessment import assess_session, execution_of
from sessions_app.recovery.services.resume_costs import costs_if_ended, expected_cost, first_turns
from sessions_app.sessions.services.status import session_status
from tests.starts.test_start_modes import DESCRIPTION, sent_texts, session_with_history, start_agent
from tests.supervisor.histories import prepare_history
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.rows import change, fresh, running_session

pytestmark = pytest.mark.django_db


def report(session: TaskSession, **usage: Any) -> None:
    """Let the agent's last turn have reported these figures."""
    turn = session.runs.order_by("-started_at").first()
    assert turn is not None
    change(turn, usage=usage)


def test_status_shows_the_context_that_a_loaded_conversation_had() -> None:
    session = session_with_history()
    unknown = session_status(session)["resume_cost"]
    assert (unknown["resume_strategy"], unknown["context_tokens"]) == ("native", None)
    assert "unknown" in unknown["text"]
    report(session, context_used=62_310, context_size=200_000)
    cost = session_status(fresh(session))["resume_cost"]
    turn = session.runs.get()
    assert turn.ended_at is not None
    assert cost == {
        "resume_strategy": "native",
        "context_tokens": 62_310,
        "context_size": 200_000,
        "context_reported_at": turn.ended_at.isoformat(),
        "history_characters": None,
        "history_estimated_tokens": None,
        "last_turn_ended_at": turn.ended_at.isoformat(),
        "text": cost["text"],
    }


def test_context_of_an_earlier_conversation_is_not_that_of_this_one() -> None:
    session = session_with_history()
    report(session, context_used=62_310)
    change(session, metadata={**session.metadata, CONVERSATION_SINCE: session.last_seq})
    assert session_status(fresh(session))["resume_cost"]["context_tokens"] is None


def test_told_history_is_shown_in_characters_until_it_is_told() -> None:
    session = session_with_history(resume_token="")
    change(session.agent_profile, history_context_injection=True)
    report(session, context_used=62_310)
    unbuilt = session_status(fresh(session))["resume_cost"]
    assert (unbuilt["resume_strategy"], unbuilt["history_characters"], unbuilt["context_tokens"]) == (
        "history",
        None,
        None,
    )
    prepare_history(fresh(session))
    before = session_status(fresh(session))["resume_cost"]
    assert before["history_characters"] > before["history_estimated_tokens"] > 0
    session, _ = start_agent(session, outcome="created")
    assert session_status(session)["resume_cost"]["history_characters"] == before["history_characters"], "still to come"
    sent_texts(session, "Go on.")
    assert session_status(fresh(session))["resume_cost"] is None


@pytest.mark.parametrize("state", ["running", "never prompted", "not resumable"])
def test_no_cost_is_shown_without_a_resume_to_come(state: str) -> None:
    session = running_session()
    if state != "running":
        change(session, launch_id="")
        ExecutorRunning.objects.update(status="stopped", resume_token="")
    if state == "not resumable":
        session = session_with_history(resume_token="")
        change(session.agent_profile, supports_session_resume=False)
    assert session_status(fresh(session))["resume_cost"] is None


def test_receipt_shows_the_figures_of_the_first_turn_after_the_resume() -> None:
    session, _ = start_agent(session_with_history(), outcome="loaded", replayed=2, replayed_user_texts=[DESCRIPTION])
    assert session_status(session)["latest_receipt"]["first_turn"] is None
    journal = Journal("epoch-2")
    usage = {"inputTokens": 7, "outputTokens": 3, "cachedReadTokens": 50_000, "cachedWriteTokens": 1_200}
    for message_id, figures in (("a", usage), ("b", {"inputTokens": 1})):
        begins = journal.turn_begins(message_id)
        ingest(session, [*begins, journal.line("usage", usage=figures), journal.completes(message_id)])
    shown = session_status(fresh(session))["latest_receipt"]
    turn = Turn.objects.get(message_id="a")
    assert turn.ended_at is not None
    assert shown["first_turn"] == {
        "id": str(turn.id),
        "message_id": "a",
        "state": "completed",
        "ended_at": turn.ended_at.isoformat(),
        "usage": {"input_tokens": 7, "output_tokens": 3, "cached_tokens": 50_000, "cache_write_tokens": 1_200},
    }


def _receipt(session: TaskSession, kind: str, after_seq: int) -> ContinuityReceipt:
    receipt: ContinuityReceipt = session.receipts.create(kind=kind, after_seq=after_seq)
    return receipt


def _turn(session: TaskSession, first_seq: int | None) -> Turn:
    values = {"state": "completed", "first_seq": first_seq, "started_at": timezone.now(), "ended_at": timezone.now()}
    return Turn.objects.create(session=session, message_id=f"m{first_seq}", **values)


@pytest.mark.parametrize(
    ("receipts", "turns", "found"),
    [
        ([("loaded", 10)], [5], [None]),
        ([("loaded", 10)], [None], [None]),
        ([("loaded", 10)], [5, 12, 20], [12]),
        ([("loaded", 10), ("reattached", 15)], [20], [20, None]),
        ([("loaded", 10), ("resumed", 15)], [20], [None, 20]),
        ([("loaded", 10), ("failed", 15), ("injected", 17)], [12, 20], [12, None, 20]),
        ([("fresh", 10)], [12], [None]),
    ],
)
def test_first_turn_belongs_to_the_start_before_it(
    receipts: list[tuple[str, int]], turns: list[int | None], found: list[int | None]
) -> None:
    session = running_session()
    session.receipts.all().delete()
    session.runs.all().delete()
    rows = [_receipt(session, *values) for values in receipts]
    for first_seq in turns:
        _turn(session, first_seq)
    read = first_turns(list(session.receipts.with_first_turn()))
    assert [read[row.id].first_seq if row.id in read else None for row in rows] == found


def test_turn_that_the_agent_began_counts_and_one_that_it_refused_does_not() -> None:
    session = session_with_history()
    change(_turn(session, session.last_seq + 1), origin="agent", usage={"context_used": 900})
    assert session_status(session)["resume_cost"]["context_tokens"] == 900
    receipt = _receipt(session, "loaded", 100)
    change(_turn(session, 101), state="failed", reason="agent_busy")
    _turn(session, 105)
    assert first_turns(list(session.receipts.with_first_turn()))[receipt.id].first_seq == 105


def test_number_of_queries_is_constant(django_assert_num_queries: Any) -> None:
    session = session_with_history()
    for count in (1, 30):
        for _ in range(count):
            _receipt(session, "loaded", session.last_seq)
            _turn(session, session.last_seq + 1)
        assessment = assess_session(session)
        with django_assert_num_queries(1):
            expected_cost(session, assessment, tells_history=False, history=None)
        with django_assert_num_queries(2):
            assert first_turns(list(session.receipts.with_first_turn()))


def test_cost_of_agents_that_run_is_read_in_two_queries(django_assert_num_queries: Any) -> None:
    reporting, silent, unasked = running_session(), running_session(), running_session()
    for session in (reporting, silent):
        journal = Journal()
        ingest(session, [*journal.turn_begins("p"), journal.completes("p")])
    report(reporting, context_used=500)
    executions = ExecutorRunning.objects.select_related("session__task", "session__agent_profile")
    rows = list(executions.filter(session__in=(reporting, silent, unasked)).order_by("created_at"))
    with django_assert_num_queries(2):
        costs = {session.id: cost for session, cost in costs_if_ended(rows)}
    assert set(costs) == {reporting.id, silent.id}, "an agent that was never asked reads nothing again"
    known = costs[reporting.id].context
    assert known is not None
    assert known.used == 500
    assert costs[silent.id].context is None
    assert execution_of(reporting) is not None

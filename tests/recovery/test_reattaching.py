"""A supervisor reattaches many living sessions in one batch, and each is handled on its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from executors_app.machine import crash_points
from executors_app.wire.executions import Observation, Observed
from sessions_app.kernel.actor_context import acting_as
from sessions_app.models import LeaseLost, SessionTransaction, TaskSession
from sessions_app.recovery.sweep import candidates, sweep_pass
from sessions_app.recovery.sweep.sweep_pass import (
    ActionOutcome,
    PendingReattach,
    SweepScope,
    run_sweep,
    write_reattachments,
)
from tests.supervisor import database_dump
from tests.supervisor.recording_agentctl import recording_agentctl
from tests.supervisor.recording_runtime import RecordingRuntime, sweep_once, with_registry
from tests.supervisor.rows import MINE, change, execution_of, fresh, last_payload, names, running_session

pytestmark = pytest.mark.django_db(transaction=True)

GONE: dict[str, Any] = {"owner": "gone", "lease_expires_at": timezone.now() - timedelta(minutes=1)}
REATTACH_EVENTS = ["session.receipt", "session.agentctl_ready"]
POINTS = ["supervisor.leased", "supervisor.attached", "sweep.taken_over", "sweep.row_unwritten"]


@pytest.fixture
def orphaned_sessions(runtime: RecordingRuntime) -> Iterator[list[TaskSession]]:
    """Yield sessions whose supervisor is gone and whose agents are alive."""
    sessions = [running_session(runtime=runtime.name, execution=GONE) for _ in range(4)]
    with ExitStack() as stack:
        for session in sessions:
            agentctl = stack.enter_context(recording_agentctl(session))
            runtime.set_observation(session, Observation(Observed.ALIVE, report=agentctl.report(), url=agentctl.url))
        yield sessions


def test_repeated_sweeps_report_each_reattachment_once(orphaned_sessions: list[TaskSession]) -> None:
    async def sweep_three_times(registry: Any) -> None:
        for _ in range(3):
            await run_sweep(registry, SweepScope("boot"), set())

    with_registry(sweep_three_times)
    assert [names(session) for session in orphaned_sessions] == [REATTACH_EVENTS] * 4
    assert [session.receipts.get().evidence["generation"] for session in orphaned_sessions] == [2] * 4


def test_sweep_updates_last_seen_of_living_agents(orphaned_sessions: list[TaskSession]) -> None:
    before = timezone.now() - timedelta(hours=1)

    def reset_last_seen() -> None:
        for session in orphaned_sessions:
            change(execution_of(session), last_seen_at=before)

    async def sweep_twice(registry: Any) -> None:
        await run_sweep(registry, SweepScope("boot"), set())
        await registry.database(reset_last_seen)
        await run_sweep(registry, SweepScope("reconcile"), set())

    began = timezone.now()
    with_registry(sweep_twice)
    assert all((execution_of(session).last_seen_at or before) >= began for session in orphaned_sessions)


def test_take_over_by_another_supervisor_is_reported_again(orphaned_sessions: list[TaskSession]) -> None:
    sweep_once()
    for session in orphaned_sessions:
        change(execution_of(session), **GONE)
    sweep_once()
    assert [names(session) for session in orphaned_sessions] == [REATTACH_EVENTS * 2] * 4


def test_session_that_cannot_be_written_does_not_stop_the_others(
    orphaned_sessions: list[TaskSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, bad, *others = orphaned_sessions
    queue = sweep_pass._place_in_start_queue

    def fail_for_bad(transaction: SessionTransaction, decision: Any) -> None:
        if transaction.session.id == bad.id:
            raise ZeroDivisionError("this row")
        queue(transaction, decision)

    monkeypatch.setattr(sweep_pass, "_place_in_start_queue", fail_for_bad)
    result = sweep_once()
    assert result.outcomes[str(bad.id)].error == "ZeroDivisionError: this row"
    assert (names(bad), bad.receipts.count()) == ([], 0)
    assert [names(session) for session in (first, *others)] == [REATTACH_EVENTS] * 3
    monkeypatch.setattr(sweep_pass, "_place_in_start_queue", queue)
    change(execution_of(bad), **GONE)
    sweep_once(SweepScope("boot", sessions=[bad.id]))
    assert names(bad) == REATTACH_EVENTS


def test_every_session_passes_the_same_crash_points_in_order(
    orphaned_sessions: list[TaskSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, str]] = []
    monkeypatch.setattr(crash_points, "reached", lambda name, session="": seen.append((name, str(session))))
    sweep_once()
    for session in orphaned_sessions:
        assert [name for name, about in seen if about == str(session.id)] == POINTS


def test_receipt_names_supervisor_sweep_and_rule(orphaned_sessions: list[TaskSession]) -> None:
    async def sweep_as_me(registry: Any) -> None:
        with acting_as(owner="me"):
            await run_sweep(registry, SweepScope("boot"), set())

    with_registry(sweep_as_me)
    for session in orphaned_sessions:
        payload = last_payload(session, "session.receipt")
        assert (payload["owner"], payload["cause"]) == ("me", "boot sweep: alive_same_agent")


def test_reattach_reports_the_workspace_as_ready(orphaned_sessions: list[TaskSession]) -> None:
    sweep_once()
    for session in orphaned_sessions:
        payload = last_payload(session, "session.agentctl_ready")
        assert (payload["reason"], payload["executor_status"]) == ("reattached", "ready")


def pending_reattaches(sessions: list[TaskSession], runtime: RecordingRuntime) -> list[PendingReattach]:
    """Return the pending reattachments of a sweep that holds the leases."""
    for session in sessions:
        change(execution_of(session), owner=MINE.owner, generation=MINE.generation)
    rows = {row.stored.session_id: row for row in candidates.load_candidates("another")[0]}
    decided = sweep_once(SweepScope("boot", dry_run=True)).decided
    by_session = {item.row.stored.session_id: item for item in decided}
    return [
        PendingReattach(rows[session.id], by_session[session.id].seen, by_session[session.id].decision, MINE)
        for session in sorted(sessions, key=lambda session: session.id)
    ]


def test_query_count_of_a_batch_equals_that_of_one(
    orphaned_sessions: list[TaskSession], runtime: RecordingRuntime
) -> None:
    one, *many = pending_reattaches(orphaned_sessions, runtime)

    def count_reads(*some: PendingReattach) -> int:
        with database_dump.counting() as queries:
            kinds = [outcome.receipt_kind for outcome in write_reattachments(some)]  # type: ignore[union-attr]
        assert kinds == ["reattached"] * len(some)
        return len([query for query in queries.captured_queries if "INSERT" not in query["sql"]])

    assert count_reads(one) == count_reads(*many)


def test_lost_lease_is_reported_and_writes_nothing(
    orphaned_sessions: list[TaskSession], runtime: RecordingRuntime
) -> None:
    some = pending_reattaches(orphaned_sessions, runtime)
    lost = some[1].session_id
    change(execution_of(TaskSession.objects.get(id=lost)), owner="somebody", generation=9)
    assert [type(outcome) for outcome in write_reattachments(some)] == [
        ActionOutcome,
        LeaseLost,
        ActionOutcome,
        ActionOutcome,
    ]
    assert {session.id: names(session) for session in orphaned_sessions} == {
        session.id: [] if session.id == lost else REATTACH_EVENTS for session in orphaned_sessions
    }
    assert fresh(orphaned_sessions[0]).state == "WAITING_FOR_INPUT"

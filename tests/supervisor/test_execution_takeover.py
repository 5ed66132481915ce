"""Many executions are taken over in one transaction, each as if it were alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from executors_app.models import ExecutorRunning
from executors_app.wire.executions import ExecutionFacts
from sessions_app.models import Lease, LeaseLost, TaskSession
from sessions_app.supervisor import leases
from sessions_app.supervisor.execution_registry import ExecutionRegistry
from sessions_app.supervisor.executions import load_execution_facts
from sessions_app.supervisor.leases import Takeover, TakeoverRequest, take_over_executions
from tests.supervisor import database_dump
from tests.supervisor.recording_runtime import with_registry
from tests.supervisor.rows import change, execution_of, running_session

pytestmark = pytest.mark.django_db(transaction=True)

SOON = timezone.now() + timedelta(days=1)


def session_with(**execution: Any) -> TaskSession:
    return running_session(execution={"owner": "", "lease_expires_at": None, "generation": 4, **execution})


def take_over(*sessions: TaskSession, reported: int = 0) -> list[Takeover | None]:
    return take_over_executions("me", [TakeoverRequest(session.id, reported) for session in sessions])


def test_takeover_returns_what_the_rows_contain() -> None:
    session = session_with(journal_epoch="e", journal_seq=7, state={"pid": 1}, worktree_branch="b")
    change(session, error_code="unreachable")
    (one,) = take_over(session)
    assert one is not None
    assert one.lease == Lease("me", 5)
    assert one.lease.execution_id == str(execution_of(session).id)
    assert one.facts == load_execution_facts(session.id)
    assert (one.facts.generation, one.epoch, one.seq, one.error_code) == (5, "e", 7, "unreachable")


def test_workspace_support_reported_by_agentctl_is_stored() -> None:
    sessions = [session_with(supports_workspace_only=known) for known in (True, True, False, True)]
    results = (True, False, True, None)
    take_over_executions(
        "me", [TakeoverRequest(one.id, 0, workspace_only=result) for one, result in zip(sessions, results, strict=True)]
    )
    assert [execution_of(one).supports_workspace_only for one in sessions] == [True, False, True, True]


def test_each_takeover_gets_a_generation_above_its_own() -> None:
    sessions = [session_with(generation=generation, owner=owner) for generation in (4, 9) for owner in ("", "gone")]
    assert [one and one.lease.generation for one in take_over(*sessions, reported=6)] == [7, 7, 10, 10]
    assert [execution_of(session).generation for session in sessions] == [7, 7, 10, 10]
    assert {execution_of(session).owner for session in sessions} == {"me"}


def test_unavailable_executions_are_left_alone_and_others_taken() -> None:
    held = session_with(owner="somebody", lease_expires_at=SOON)
    nowhere, moved, free = session_with(agentctl_url=""), session_with(), session_with()
    change(moved, agent_execution_id=execution_of(free).id)
    first, second, third, last = take_over(held, nowhere, moved, free)
    assert (first, second, third) == (None, None, None)
    assert last is not None
    assert [execution_of(session).generation for session in (held, nowhere, moved, free)] == [4, 4, 4, 5]


@pytest.fixture
def overtaken(monkeypatch: pytest.MonkeyPatch) -> TaskSession:
    """Return a session whose row another process changes between our read and our write."""
    session = session_with()
    decide = leases._next_generation

    def change_row_first(execution: ExecutorRunning, owner: str, reported: int) -> int:
        if execution.session_id == session.id:
            change(execution, generation=8)
        return decide(execution, owner, reported)

    monkeypatch.setattr(leases, "_next_generation", change_row_first)
    return session


def test_concurrently_changed_row_is_not_taken(overtaken: TaskSession) -> None:
    assert take_over(overtaken) == [None]
    assert (execution_of(overtaken).owner, execution_of(overtaken).generation) == ("", 8)


def test_concurrently_changed_row_does_not_affect_other_takeovers(overtaken: TaskSession) -> None:
    other = session_with()
    with pytest.raises(LeaseLost):
        take_over(overtaken, other)
    assert execution_of(other).owner == ""

    async def take_over_both(registry: ExecutionRegistry) -> list[Any]:
        return await asyncio.gather(
            *(registry._takeovers(TakeoverRequest(session.id, 0)) for session in (overtaken, other))
        )

    lost, had = with_registry(take_over_both)
    assert lost is None
    assert had.lease.generation == 5


def test_taking_many_needs_as_many_queries_as_taking_one() -> None:
    alone, *many = (session_with() for _ in range(11))
    with database_dump.counting() as queries_for_one:
        assert all(take_over(alone))
    with database_dump.counting() as queries_for_many:
        assert all(take_over(*many))
    assert len(queries_for_many) == len(queries_for_one)


def test_unreadable_row_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    first, bad, last = (session_with() for _ in range(3))
    read = leases._facts

    def fail_for_bad(values: Sequence[Any]) -> ExecutionFacts:
        if execution_of(bad).id in values:
            raise ValueError("no such thing")
        return read(values)

    async def take_over_all(registry: ExecutionRegistry) -> list[Any]:
        wanted = [registry._takeovers(TakeoverRequest(session.id, 0)) for session in (first, bad, last)]
        return await asyncio.gather(*wanted, return_exceptions=True)

    monkeypatch.setattr(leases, "_facts", fail_for_bad)
    assert [type(one) for one in with_registry(take_over_all)] == [Takeover, ValueError, Takeover]
    assert [execution_of(session).generation for session in (first, bad, last)] == [5, 4, 5]

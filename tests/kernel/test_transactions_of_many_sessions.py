"""Many sessions are changed in one transaction, each as if it were alone."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from django.db.transaction import atomic
from django.utils import timezone

from executors_app.models import ExecutorRunning
from sessions_app.kernel import actor_context
from sessions_app.kernel.transactions import append_all_events
from sessions_app.models import Lease, NewEvent, TaskSession, append_events, session_transaction, session_transactions
from tests.raw_events import record_raw_event
from tests.supervisor import database_dump
from tests.supervisor.rows import MINE, change, execution_of, fresh, last_payload, names, running_session

pytestmark = pytest.mark.django_db


def leases_of(*sessions: TaskSession) -> dict[uuid.UUID, Lease]:
    return {session.id: MINE for session in sessions}


def test_each_session_is_written_as_if_alone() -> None:
    alone, *others = (running_session() for _ in range(3))
    with session_transaction(alone.id, MINE) as transaction:
        transaction.set_fields(policy="off")
        transaction.write_receipt("reattached", "same_process", reason="taken_over", evidence={"generation": 1})
    with session_transactions(leases_of(*others)) as transactions:
        assert set(transactions) == {session.id for session in others}
        for transaction in transactions.values():
            transaction.set_fields(policy="off")
            transaction.write_receipt("reattached", "same_process", reason="taken_over", evidence={"generation": 1})
    receipts = [session.receipts.get() for session in (alone, *others)]
    assert [(one.kind, one.reason, one.evidence) for one in receipts] == [
        ("reattached", "taken_over", {"generation": 1})
    ] * 3
    assert [names(session) for session in (alone, *others)] == [["session.receipt"]] * 3
    assert [fresh(session).policy for session in (alone, *others)] == ["off"] * 3
    assert timezone.now() - receipts[0].created_at < timedelta(minutes=1)


def test_transaction_has_the_execution_that_was_read() -> None:
    session = running_session()
    with session_transactions(leases_of(session)) as transactions, database_dump.counting() as queries:
        assert transactions[session.id].execution == execution_of(session)
        assert queries.captured_queries[:-1] == []
        assert transactions[session.id].session.__dict__["present_execution"] == transactions[session.id].execution


def test_sessions_without_our_lease_are_left_out() -> None:
    mine, lost, moved, bare = (running_session() for _ in range(4))
    change(execution_of(lost), generation=2)
    ExecutorRunning.objects.filter(session=bare).delete()
    elsewhere = Lease(MINE.owner, MINE.generation, str(uuid.uuid4()))
    with session_transactions({**leases_of(mine, lost, bare), moved.id: elsewhere}) as transactions:
        assert set(transactions) == {mine.id}


@pytest.mark.django_db(transaction=True)
def test_one_failure_rolls_everything_back() -> None:
    sessions = [running_session() for _ in range(2)]
    with pytest.raises(ZeroDivisionError), session_transactions(leases_of(*sessions)) as transactions:
        for number, transaction in enumerate(transactions.values()):
            transaction.set_fields(policy="off")
            record_raw_event(transaction, "session.tick")
            transaction.after_events.append(lambda number=number: 1 // (1 - number))  # type: ignore[misc]
    assert [names(session) for session in sessions] == [[], []]
    assert {fresh(session).policy for session in sessions} == {sessions[0].policy}
    assert {fresh(session).last_seq for session in sessions} == {0}


def test_each_change_records_its_actor() -> None:
    sessions = [running_session() for _ in range(2)]
    with actor_context.acting_as(owner="me"), session_transactions(leases_of(*sessions)) as transactions:
        for session in sessions:
            transactions[session.id].actor = {"owner": "me", "cause": f"for {session.id}"}
            transactions[session.id].write_receipt("reattached", "same_process")
    for session in sessions:
        payload = last_payload(session, "session.receipt")
        assert (payload["owner"], payload["cause"]) == ("me", f"for {session.id}")


def test_writing_many_needs_as_many_queries_as_writing_one() -> None:
    def write(*sessions: TaskSession) -> int:
        with database_dump.counting() as queries, session_transactions(leases_of(*sessions)) as transactions:
            for transaction in transactions.values():
                record_raw_event(transaction, "session.tick")
        return len([one for one in queries.captured_queries if "INSERT" not in one["sql"]])

    alone, *many = (running_session() for _ in range(11))
    assert write(alone) == write(*many)


def test_sessions_with_different_event_counts_are_numbered_separately() -> None:
    counts = (2, 0, 1, 2)
    sessions = [running_session() for _ in counts]
    with atomic():
        append_events(sessions[0].id, [NewEvent("before")])
        batches = [[NewEvent(f"tick {number}") for number in range(count)] for count in counts]
        append_all_events({session.id: events for session, events in zip(sessions, batches, strict=True)})
    assert [names(session) for session in sessions] == [
        ["before", "tick 0", "tick 1"],
        [],
        ["tick 0"],
        ["tick 0", "tick 1"],
    ]
    assert [[event.seq for event in events] for events in batches] == [[2, 3], [], [1], [1, 2]]
    assert [fresh(session).last_seq for session in sessions] == [3, 0, 1, 2]


def test_event_without_a_session_rolls_everything_back() -> None:
    session = running_session()
    with pytest.raises(TaskSession.DoesNotExist), atomic():
        append_all_events({session.id: [NewEvent("tick")], uuid.uuid4(): [NewEvent("tick")]})
    assert (names(session), fresh(session).last_seq) == ([], 0)

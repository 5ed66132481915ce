"""A session changes only in its transaction: by the state tables, with its events, all or nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from executors_app.wire.executions import ExecutorStatus
from sessions_app.kernel.rules.states import IllegalMove
from sessions_app.models import (
    ContinuityReceipt,
    Lease,
    LeaseLost,
    Prompt,
    SessionTransaction,
    Task,
    Turn,
    session_transaction,
)
from tests.raw_events import record_raw_event
from tests.supervisor import database_dump
from tests.supervisor.rows import (
    MINE,
    execution_of,
    fresh,
    last_payload,
    make_session,
    make_task,
    names,
    running_session,
)

pytestmark = pytest.mark.django_db


def test_move_is_recorded_with_its_target_and_reason() -> None:
    session = make_session()
    with session_transaction(session.id) as transaction:
        assert transaction.move_session("fail", error_code="spawn_failed", error_message="No such program.")
    assert (fresh(session).state, fresh(session).error_code) == ("ERROR", "spawn_failed")
    assert names(session) == ["session.state_changed"]
    assert last_payload(session, "session.state_changed") == {
        "from": "CREATED",
        "to": "ERROR",
        "reason": "fail",
        "error_code": "spawn_failed",
        "error_message": "No such program.",
    }


def test_move_to_the_current_state_is_not_recorded() -> None:
    session = running_session()
    with session_transaction(session.id) as transaction:
        assert not transaction.move_session("ready")
        assert not transaction.move_work("rest")
        assert not transaction.move_executor("ready")
        transaction.set_fields(policy=session.policy)
    assert names(session) == []


def test_new_error_in_the_same_state_is_recorded() -> None:
    session = make_session()
    with session_transaction(session.id) as transaction:
        transaction.move_session("fail", error_code="one")
        transaction.move_session("fail", error_code="two")
    assert names(session) == ["session.state_changed"] * 2
    assert fresh(session).error_code == "two"


def test_recovered_state_clears_the_error() -> None:
    session = make_session(state="ERROR", error_code="spawn_failed", error_message="No.")
    with session_transaction(session.id) as transaction:
        transaction.move_session("ready")
    assert (fresh(session).error_code, fresh(session).error_message) == ("", "")


ILLEGAL: list[tuple[str, dict[str, Any], Callable[[SessionTransaction], object]]] = [
    ("session", {"state": "COMPLETED"}, lambda transaction: transaction.move_session("start")),
    ("work", {"work_state": "done"}, lambda transaction: transaction.move_work("rest")),
    ("executor", {}, lambda transaction: transaction.move_executor("ready")),
    ("prompt", {}, lambda transaction: transaction.move_prompt(transaction.session.prompts.get(), "deliver")),
]


@pytest.mark.parametrize(("machine", "fields", "move"), ILLEGAL, ids=[line[0] for line in ILLEGAL])
def test_illegal_move_changes_nothing(
    machine: str, fields: dict[str, Any], move: Callable[[SessionTransaction], object]
) -> None:
    session = make_session("first", **fields)
    before = database_dump.dump()
    with pytest.raises(IllegalMove) as refused, session_transaction(session.id) as transaction:
        transaction.set_fields(policy="manual")
        record_raw_event(transaction, "session.note")
        transaction.start_run("p1")
        move(transaction)
    assert refused.value.machine == machine
    assert database_dump.dump() == before


def fails() -> None:
    raise ZeroDivisionError


def test_later_error_rolls_everything_back() -> None:
    session = make_session("first")
    before = database_dump.dump()
    with pytest.raises(ZeroDivisionError), session_transaction(session.id) as transaction:
        transaction.move_session("start")
        transaction.move_executor("launch")
        transaction.write_receipt("fresh", "none", launch_id="l1")
        transaction.after_events.append(fails)
    assert database_dump.dump() == before


@pytest.mark.parametrize("lease", [Lease("other", 1), Lease("me", 2)])
def test_only_the_holder_of_the_lease_may_write(lease: Lease) -> None:
    session = running_session()
    with pytest.raises(LeaseLost), session_transaction(session.id, lease) as transaction:
        record_raw_event(transaction, "never")
    with session_transaction(session.id, MINE) as transaction:
        record_raw_event(transaction, "once")
    assert names(session) == ["once"]


def test_session_without_an_execution_has_no_lease() -> None:
    session = make_session(agent_execution_id=None)
    with pytest.raises(LeaseLost), session_transaction(session.id, MINE):
        pass


@pytest.mark.parametrize(
    ("move", "text"),
    [
        ("launch", "session.agentctl_starting"),
        ("fail", "session.agentctl_error"),
        ("stop", "session.agentctl_stopped"),
    ],
)
def test_execution_move_is_recorded(move: str, text: str) -> None:
    session = running_session()
    with session_transaction(session.id) as transaction:
        assert transaction.move_executor(move, error_message="why" if move == "fail" else "")
    assert names(session) == [text]
    assert last_payload(session, text)["executor_status"] == execution_of(session).status


def test_healthy_execution_has_no_error_and_no_stop_reason() -> None:
    session = running_session(execution={"status": "error", "error_code": "x", "error_message": "y"})
    with session_transaction(session.id) as transaction:
        transaction.move_executor("stop", status_reason="idle")
    assert (execution_of(session).error_code, execution_of(session).status_reason) == ("", "idle")
    with session_transaction(session.id) as transaction:
        transaction.move_executor("launch")
    assert (execution_of(session).status, execution_of(session).status_reason) == (ExecutorStatus.STARTING, "")


def test_turn_ends_once() -> None:
    session = running_session()
    with session_transaction(session.id) as transaction:
        run = transaction.start_run("p1")
        transaction.move_run("wait", wait_kind="external", wait_id="w", resume_token_id="t", deadline=None)
        transaction.move_run("resume")
        transaction.move_run("complete", reason="end_turn")
        assert transaction.move_run("fail") is None
    assert names(session) == [f"session.run.{what}" for what in ("started", "waiting", "resumed", "completed")]
    ended = Turn.objects.get(id=run.id)
    assert (ended.state, ended.reason, ended.waited) == ("completed", "end_turn", False)
    assert ended.ended_at is not None


def test_prompt_move_is_recorded() -> None:
    session = make_session("first")
    with session_transaction(session.id) as transaction:
        prompt = transaction.session.prompts.get()
        for move in ("send", "send", "accept", "deliver", "finish"):
            transaction.move_prompt(prompt, move)
    assert names(session) == [f"session.prompt.{state}" for state in ("sending", "accepted", "delivered", "done")]
    assert Prompt.objects.get().state == "done"


def test_repeated_start_has_one_receipt() -> None:
    session = running_session()
    for kind in ("resumed", "failed"):
        with session_transaction(session.id) as transaction:
            transaction.write_receipt(kind, "none", launch_id="l1")
    with session_transaction(session.id) as transaction:
        transaction.write_receipt("reattached", "same_process")
        transaction.write_receipt("reattached", "same_process")
    kinds = ContinuityReceipt.objects.order_by("created_at").values_list("kind", flat=True)
    assert list(kinds) == ["resumed", "reattached", "reattached"]
    assert names(session) == ["session.receipt"] * 3


def state_of(task: Task) -> str:
    return str(fresh(task).state)


def test_task_state_follows_from_its_sessions() -> None:
    task = make_task()
    one, two = make_session(task=task), make_session(task=task)
    steps = (
        (one, "start", "IN_PROGRESS"),
        (two, "start", "IN_PROGRESS"),
        (one, "ready", "IN_PROGRESS"),
        (two, "fail", "REVIEW"),
        (one, "give_up", "REVIEW"),
        (two, "give_up", "FAILED"),
        (two, "start", "IN_PROGRESS"),
        (two, "complete", "REVIEW"),
    )
    for session, move, state in steps:
        with session_transaction(session.id) as transaction:
            transaction.move_session(move)
        assert state_of(task) == state, move


@pytest.mark.parametrize("decided", ["DONE", "CANCELLED"])
def test_task_state_set_by_a_user_stays(decided: str) -> None:
    task = make_task()
    session = make_session(task=task)
    Task.objects.filter(id=task.id).update(state=decided)
    with session_transaction(session.id) as transaction:
        transaction.move_session("start")
    assert state_of(task) == decided

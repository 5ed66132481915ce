"""Every action of a supervisor is in the session's log and in Kandev's own, with cause and owner."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from sessions_app.events import EVENT_CLASSES
from sessions_app.kernel import actor_context
from sessions_app.models import Prompt, TaskSession, WaitKey, session_transaction
from sessions_app.prompts import services as prompts
from sessions_app.prompts.overdue import report_overdue_prompts
from sessions_app.starts.outcomes import StartFailure, write_start_failure, write_stopped
from sessions_app.turns.interruptions import interrupt_turn
from sessions_app.turns.silence import report_stalled_turns
from sessions_app.waits import expiry
from sessions_app.waits.models import mint_wait_key
from sessions_app.waits.rules.wait_keys import WaitKind
from tests.supervisor.commands import environment, supervising
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.recording_agentctl import recording_agentctl
from tests.supervisor.rows import MINE, change, execution_of, make_session, make_user, running_session

LATE = timezone.now() - timedelta(days=1)


def in_a_turn(**fields: Any) -> tuple[TaskSession, Journal]:
    session, journal = running_session(state="RUNNING", work_state="working", **fields), Journal()
    Prompt.objects.create(session=session, message_id="p1", text="build", state="sending")
    ingest(session, journal.turn_begins("p1"))
    return session, journal


def agent_dies_in_a_turn() -> tuple[TaskSession, Callable[[], Any]]:
    session, _ = in_a_turn()

    def act() -> None:
        with session_transaction(session.id, MINE) as transaction:
            interrupt_turn(transaction, "agentctl_gone")

    return session, act


def start_fails(attempts: int = 1) -> tuple[TaskSession, Callable[[], Any]]:
    session = make_session(state="STARTING", start_attempts=attempts)
    change(execution_of(session), owner=MINE.owner, generation=MINE.generation)
    order = session.intents.get().id
    return session, lambda: write_start_failure(
        session.id, order, MINE, StartFailure("spawn_failed", "No such program")
    )


def session_falls_asleep() -> tuple[TaskSession, Callable[[], Any]]:
    session = running_session()
    return session, lambda: write_stopped(session.id, MINE, "idle")


def turn_is_retried() -> tuple[TaskSession, Callable[[], Any]]:
    session, journal = in_a_turn()
    line = journal.line("turn.failed", message_id="p1", code="agent_error", message="API Error: 529 overloaded_error")
    return session, lambda: ingest(session, [line])


def turn_is_silent() -> tuple[TaskSession, Callable[[], Any]]:
    session, _ = in_a_turn()
    return session, lambda: report_stalled_turns({session.id: MINE})


def prompt_is_overdue() -> tuple[TaskSession, Callable[[], Any]]:
    session = make_session("Begin", state="ERROR")
    Prompt.objects.update(created_at=LATE)
    return session, report_overdue_prompts


def wait_key_expires() -> tuple[TaskSession, Callable[[], Any]]:
    session = running_session()
    with session_transaction(session.id) as transaction:
        mint_wait_key(transaction, None, WaitKind.EXTERNAL, "w")
    WaitKey.objects.update(expires_at=LATE)
    return session, expiry.expire_waits


def journal_is_damaged() -> tuple[TaskSession, Callable[[], Any]]:
    session, journal = in_a_turn()
    journal.seq += 5
    return session, lambda: ingest(session, journal.says("late"))


Case = tuple[Callable[[], tuple[TaskSession, Callable[[], Any]]], frozenset[str]]
CASES: tuple[Case, ...] = (
    (agent_dies_in_a_turn, frozenset({"run.interrupted", "state_changed", "prompt.queued"})),
    (start_fails, frozenset({"receipt", "state_changed"})),
    (lambda: start_fails(100), frozenset({"receipt", "state_changed"})),
    (session_falls_asleep, frozenset({"agentctl_stopped"})),
    (turn_is_retried, frozenset({"run.retrying", "prompt.queued"})),
    (turn_is_silent, frozenset({"run.stalled"})),
    (prompt_is_overdue, frozenset({"prompt.overdue"})),
    (wait_key_expires, frozenset({"token.expired"})),
    (journal_is_damaged, frozenset({"journal_gap"})),
)


@pytest.mark.django_db
@pytest.mark.parametrize(("make", "message"), CASES, ids=lambda value: getattr(value, "__name__", ""))
def test_every_supervisor_action_has_cause_and_owner_in_both_logs(
    make: Callable[[], tuple[TaskSession, Callable[[], Any]]],
    message: frozenset[str],
    caplog: pytest.LogCaptureFixture,
    django_capture_on_commit_callbacks: Any,
) -> None:
    session, act = make()
    before = session.events.count()
    with (
        actor_context.acting_as(owner="boot-1", cause="why"),
        caplog.at_level(logging.INFO),
        django_capture_on_commit_callbacks(execute=True),
    ):
        act()
    events = {
        one.name: one.payload for one in session.events.filter(seq__gt=before) if EVENT_CLASSES[one.name].is_audited
    }
    assert {f"session.{name}" for name in message} <= set(events)
    assert {(one["cause"], one["owner"]) for one in events.values()} == {("why", "boot-1")}
    records = {vars(one)["event"]: vars(one) for one in caplog.records if hasattr(one, "event")}
    assert set(records) == set(events)
    for line in records.values():
        about = (line["session_id"], line["task_id"], line["execution_id"], line["cause"], line["owner"])
        execution_id = str(session.agent_execution_id)
        assert about == (str(session.id), str(session.task_id), execution_id, "why", "boot-1")
        assert line["seq"] > before


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("make", "warned"),
    [
        (start_fails, {"session.receipt"}),
        (lambda: start_fails(100), {"session.receipt", "session.state_changed"}),
        (session_falls_asleep, set()),
        (turn_is_retried, set()),
    ],
    ids=["failed start", "given up", "asleep", "retried"],
)
def test_failed_starts_and_sessions_given_up_are_warnings(
    make: Callable[[], tuple[TaskSession, Callable[[], Any]]],
    warned: set[str],
    caplog: pytest.LogCaptureFixture,
    django_capture_on_commit_callbacks: Any,
) -> None:
    _, act = make()
    with (
        actor_context.acting_as(owner="boot-1", cause="why"),
        caplog.at_level(logging.INFO),
        django_capture_on_commit_callbacks(execute=True),
    ):
        act()
    lines = [record for record in caplog.records if hasattr(record, "event")]
    assert {vars(line)["event"] for line in lines if line.levelno == logging.WARNING} == warned
    assert {line.levelno for line in lines} <= {logging.INFO, logging.WARNING}


@pytest.mark.django_db
def test_user_request_is_not_logged_as_a_supervisor_action(
    caplog: pytest.LogCaptureFixture, django_capture_on_commit_callbacks: Any
) -> None:
    session = running_session("Begin")
    with caplog.at_level(logging.INFO), django_capture_on_commit_callbacks(execute=True):
        prompts.queue_prompt(session.id, "m1", "Go on", make_user())
    assert "owner" not in session.events.filter(name="session.prompt.queued").latest("seq").payload
    assert not [one for one in caplog.records if hasattr(one, "event")]


@pytest.mark.django_db(transaction=True)
def test_rolled_back_action_is_in_neither_log(caplog: pytest.LogCaptureFixture) -> None:
    session = running_session()
    with (
        actor_context.acting_as(owner="boot-1", cause="why"),
        caplog.at_level(logging.INFO),
        pytest.raises(RuntimeError),
        session_transaction(session.id, MINE) as transaction,
    ):
        transaction.write_receipt("resumed", "pending")
        transaction.after_events.append(_raise)
    assert not session.receipts.exists()
    assert not [one for one in caplog.records if hasattr(one, "event")]


def _raise() -> None:
    raise RuntimeError


@pytest.mark.any_database
@pytest.mark.django_db(transaction=True)
def test_supervisor_log_is_json_with_actors_and_without_secrets(tmp_path: Path) -> None:
    session = running_session(execution={"owner": "dead", "lease_expires_at": LATE})
    with recording_agentctl(session, [*Journal().turn_begins("p1"), *Journal().says("hello")], "working"):
        env = environment(tmp_path / "data", KANDEV_LOG_FORMAT="json")
        with supervising(env, tmp_path / "log") as running:
            running.wait_for_output("supervising: 1 sessions attached")
            assert running.ends() == 0
    lines = [json.loads(line) for line in running.log.splitlines()]
    (receipt,) = [line for line in lines if line.get("event") == "session.receipt"]
    execution = execution_of(session)
    assert (receipt["session_id"], receipt["task_id"]) == (str(session.id), str(session.task_id))
    assert (receipt["execution_id"], receipt["act_kind"]) == (str(execution.id), "reattached")
    assert receipt["cause"].startswith("boot sweep: alive_same_agent") and len(receipt["sweep_id"]) == 36
    payload = session.events.get(name="session.receipt").payload
    assert (payload["cause"], payload["owner"]) == (receipt["cause"], receipt["owner"])
    secrets = (execution.auth_token, execution.resume_token, env["KANDEV_SECRET_KEY"])
    assert all(secrets) and not [one for one in secrets if one in running.log]

"""External waits of a session at rest: one key, one answer, one prompt, one run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from sessions_app.board.services import tasks
from sessions_app.kernel.services.errors import (
    Conflict,
    Invalid,
    SessionsError,
    TerminalState,
    TokenConsumed,
    TokenExpired,
    TokenInvalid,
    TokenRevoked,
)
from sessions_app.models import Prompt, TaskSession, WaitKey, session_transaction
from sessions_app.prompts import services as prompts
from sessions_app.sessions.services import intents
from sessions_app.sessions.services.status import session_status
from sessions_app.starts.outcomes import write_stopped
from sessions_app.turns.interruptions import interrupt_turn
from sessions_app.waits import services as waits
from sessions_app.waits.expiry import expire_waits
from sessions_app.waits.services import OpenWait
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.rows import (
    change,
    conversation,
    fresh,
    last_payload,
    make_task,
    make_user,
    names,
    open_orders,
    prompt_states,
    running_session,
    runs,
)

pytestmark = pytest.mark.django_db


def wait(session: TaskSession, deadline: datetime | None = None, reason: str = "The build") -> OpenWait:
    return waits.open_wait(session.id, reason, deadline, make_user())


def key_of(opened: OpenWait) -> str:
    assert opened.resume_token is not None
    return opened.resume_token


def status(session: TaskSession) -> Any:
    return session_status(fresh(session))["derived_status"]


def run_and_token_events(session: TaskSession) -> list[str]:
    """Return the events of runs and keys, without their common prefix."""
    wanted = ("session.run.", "session.token.")
    found = [name.removeprefix("session.") for name in names(session) if name.startswith(wanted)]
    return [name for name in found if name != "run.started"]


def test_wait_and_the_turn_after_it_are_one_run() -> None:
    session, journal = running_session(), Journal()
    opened = wait(session)
    assert status(session) == "waiting"
    answer = waits.resume_wait(key_of(opened), "The build has passed.", "1")
    assert answer == {"run_id": str(opened.run_id), "status": "running"}
    assert status(session) == "running"
    name = f"wait:{opened.wait_id}"
    assert [(row.message_id, row.kind, row.text) for row in Prompt.objects.all()] == [
        (name, "wait", "The build has passed.")
    ]
    Prompt.objects.update(state="sending")
    ingest(session, [*journal.turn_begins(name), *journal.says("Good."), journal.completes(name)])
    assert runs(session) == [(name, "completed")]
    assert status(session) == "idle"
    assert run_and_token_events(session) == [
        "run.waiting",
        "token.minted",
        "token.consumed",
        "run.resumed",
        "run.completed",
    ]
    assert [one[:2] for one in conversation(session)] == [("user", "The build has passed."), ("agent", "Good.")]


def test_each_change_of_the_derived_status_is_recorded_once() -> None:
    session = running_session()
    opened = wait(session)
    waits.resume_wait(key_of(opened), "x", "1")
    payloads = [event.payload for event in session.events.filter(name="session.status_derived").order_by("seq")]
    assert payloads == [{"from": "idle", "status": "waiting"}, {"from": "waiting", "status": "running"}]


def test_status_names_the_wait_and_its_start() -> None:
    session, deadline = running_session(), timezone.now() + timedelta(hours=1)
    opened = wait(session, deadline)
    seen = session_status(fresh(session))["wait"]
    since = session.events.get(name="session.run.waiting").seq
    assert seen == {
        "id": opened.wait_id,
        "kind": "external",
        "reason": "The build",
        "since_seq": since,
        "deadline": deadline.isoformat(),
    }
    waits.resume_wait(key_of(opened), "x", "1")
    assert session_status(fresh(session))["wait"] is None


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        ("as it is\n", "as it is\n"),
        ({"result": "passed"}, '{\n  "result": "passed"\n}'),
        ([1, "ä"], '[\n  1,\n  "ä"\n]'),
        (None, "The awaited result has arrived: The build"),
        ("", "The awaited result has arrived: The build"),
    ],
)
def test_payload_becomes_the_agents_prompt(payload: Any, text: str) -> None:
    session = running_session()
    waits.resume_wait(key_of(wait(session)), payload, "1")
    assert Prompt.objects.get().text == text


def test_invalid_payload_does_not_consume_the_key() -> None:
    session = running_session()
    key = key_of(wait(session))
    with pytest.raises(Invalid) as refused:
        waits.resume_wait(key, " \n", "1")
    assert refused.value.details == {"field": "payload"}
    assert waits.resume_wait(key, "better", "1")["status"] == "running"


def test_same_idempotency_key_gets_first_answer_and_another_is_refused() -> None:
    session = running_session()
    key = key_of(wait(session))
    first = waits.resume_wait(key, "x", "build-1")
    assert waits.resume_wait(key, "y", "build-1") == first
    for other in ("build-2", ""):
        with pytest.raises(TokenConsumed) as refused:
            waits.resume_wait(key, "x", other)
        assert refused.value.details["consumed_at"]
    assert Prompt.objects.count() == 1


def test_repeat_that_overtakes_the_first_answer_resumes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    session = running_session()
    key = key_of(wait(session))
    first = waits.resume_wait(key, "x", "build-1")
    check = waits.earlier_answer
    seen_before_the_first_answer: list[None] = [None]

    def check_too_early(token: WaitKey, idempotency_key: str) -> dict[str, Any] | None:
        if seen_before_the_first_answer:
            return seen_before_the_first_answer.pop()
        return check(token, idempotency_key)

    monkeypatch.setattr(waits, "earlier_answer", check_too_early)
    assert waits.resume_wait(key, "y", "build-1") == first
    assert Prompt.objects.get().text == "x"


def test_key_of_a_member_who_has_left_the_team_ends_no_wait() -> None:
    session = running_session()
    key = key_of(wait(session))
    make_user().groups.clear()
    with pytest.raises(TokenRevoked) as refused:
        waits.resume_wait(key, "x", "1")
    assert refused.value.details["reason"] == "owner_left"
    assert (status(session), Prompt.objects.count()) == ("waiting", 0)
    make_user()  # is a member again
    waits.resume_wait(key, "x", "1")


def test_second_answer_without_an_idempotency_key_is_refused() -> None:
    key = key_of(wait(running_session()))
    waits.resume_wait(key, "x", "")
    with pytest.raises(TokenConsumed):
        waits.resume_wait(key, "x", "")


def test_reopened_wait_has_another_key() -> None:
    session = running_session()
    first = wait(session)
    second = wait(session, timezone.now() + timedelta(hours=1), "Another build")
    assert (second.run_id, second.wait_id) == (first.run_id, first.wait_id)
    with pytest.raises(TokenRevoked) as refused:
        waits.resume_wait(key_of(first), "x", "1")
    assert refused.value.details["reason"] == "rotated"
    assert session_status(fresh(session))["wait"]["reason"] == "Another build"
    assert status(session) == "waiting"
    assert waits.resume_wait(key_of(second), "x", "1")["run_id"] == str(first.run_id)


def by_message(session: TaskSession) -> None:
    prompts.queue_prompt(session.id, "m1", "Never mind the build.", make_user())


def by_cancel(session: TaskSession) -> None:
    assert intents.request_cancel(session.id, make_user())


def by_stop(session: TaskSession) -> None:
    intents.request_stop(session.id, make_user())


def by_close(session: TaskSession) -> None:
    intents.request_close(session.id, make_user(), "completed")


def by_archive(session: TaskSession) -> None:
    tasks.archive_task(session.task, make_user())


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (by_message, "new_message"),
        (by_cancel, "cancelled"),
        (by_stop, "stopped"),
        (by_close, "closed"),
        (by_archive, "stopped"),
    ],
)
def test_every_end_of_a_wait_revokes_its_key(end: Callable[[TaskSession], None], reason: str) -> None:
    session = running_session()
    opened = wait(session)
    end(session)
    with pytest.raises(TokenRevoked) as refused:
        waits.resume_wait(key_of(opened), "x", "1")
    assert refused.value.details["reason"] == reason
    assert [state for _, state in runs(session)] == ["cancelled"]
    assert status(session) == "idle"
    assert not Prompt.objects.filter(kind="wait").exists()
    assert ("cancel", {"message_id": f"wait:{opened.wait_id}"}) not in open_orders(session)


def test_missed_deadline_interrupts_the_wait_once() -> None:
    session = running_session()
    opened = wait(session, timezone.now() + timedelta(hours=1))
    assert expire_waits() == 0
    WaitKey.objects.update(expires_at=timezone.now())
    assert status(session) == "interrupted_waiting", "the status changes even before the expiry is recorded"
    assert [expire_waits(), expire_waits()] == [1, 0]
    assert run_and_token_events(session) == ["run.waiting", "token.minted", "token.expired", "run.interrupted"]
    assert last_payload(session, "session.run.interrupted")["reason"] == "wait_timeout"
    assert status(session) == "interrupted_waiting"
    with pytest.raises(TokenExpired):
        waits.resume_wait(key_of(opened), "x", "1")
    wait(session)
    assert status(session) == "waiting", "a newer run ends the wait"


def test_wait_that_cannot_be_ended_does_not_stop_others(caplog: pytest.LogCaptureFixture) -> None:
    broken, other = running_session(), running_session(task=make_task(title="Another"))
    for session in (broken, other):
        wait(session, timezone.now() + timedelta(hours=1))
    WaitKey.objects.update(expires_at=timezone.now())
    broken.events.create(seq=99, name="x", at=timezone.now(), once=f"run.interrupted:{broken.runs.get().id}")
    assert expire_waits() == 1
    assert status(other) == "interrupted_waiting"
    assert str(broken.id) in caplog.text


def test_wait_outlives_its_agent_and_its_answer_wakes_it() -> None:
    session, journal = running_session(), Journal()
    opened = wait(session)
    ingest(session, [journal.exits()])
    with session_transaction(session.id) as transaction:
        assert not interrupt_turn(transaction, "agentctl_gone")
    write_stopped(session.id, None, "idle")
    assert status(session) == "waiting"
    waits.resume_wait(key_of(opened), "x", "1")
    assert [kind for kind, _ in open_orders(session)] == ["start"]
    assert fresh(session).desired_state == "running"
    assert status(session) == "running"


def test_closed_session_ends_its_wait() -> None:
    session = running_session()
    opened = wait(session)
    write_stopped(session.id, None, "closed", "completed")
    with pytest.raises((TokenRevoked, TerminalState)):
        waits.resume_wait(key_of(opened), "x", "1")
    assert status(session) == "idle"


def not_resumable(session: TaskSession) -> None:
    change(session, launch_id="", error_code="worktree_missing")


def fail_session(session: TaskSession) -> None:
    change(session, state="FAILED")


@pytest.mark.parametrize("prevent", [not_resumable, fail_session])
def test_key_is_not_consumed_if_nothing_can_be_started(prevent: Callable[[TaskSession], None]) -> None:
    session = running_session()
    before = fresh(session)
    key = key_of(wait(session))
    prevent(session)
    with pytest.raises(SessionsError):
        waits.resume_wait(key, "x", "1")
    assert (prompt_states(session), status(session)) == ({}, "waiting")
    change(session, state=before.state, launch_id=before.launch_id, error_code="")
    assert waits.resume_wait(key, "x", "1")["status"] == "running"


@pytest.mark.parametrize("state", ["queued", "sending", "accepted", "delivered"])
def test_no_wait_begins_while_a_prompt_is_being_delivered(state: str) -> None:
    session = running_session()
    Prompt.objects.create(session=session, message_id="p1", text="x", state=state)
    with pytest.raises(Conflict):
        wait(session)


def test_wait_is_refused_during_turns_after_deadlines_and_in_ended_sessions() -> None:
    session, journal = running_session(), Journal()
    ingest(session, journal.turn_begins("p1"))
    with pytest.raises(Conflict):
        wait(session)
    with pytest.raises(Invalid):
        wait(running_session(), timezone.now())
    with pytest.raises(TerminalState):
        wait(running_session(state="COMPLETED"))
    assert not WaitKey.objects.exists()


def test_withdrawing_a_wait_result_ends_its_run() -> None:
    session = running_session()
    opened = wait(session)
    waits.resume_wait(key_of(opened), "x", "1")
    prompts.withdraw_prompt(session.id, f"wait:{opened.wait_id}")
    assert [state for _, state in runs(session)] == ["cancelled"]
    assert status(session) == "idle"


def test_permission_key_ends_no_external_wait() -> None:
    session, journal = running_session(), Journal()
    ingest(session, [*journal.turn_begins("p1"), journal.requests_permission("q1")])
    key = WaitKey.objects.get(wait_id="q1").secret()
    for wrong in (key or "", "", "kwt_guess"):
        with pytest.raises(TokenInvalid):
            waits.resume_wait(wrong, "x", "1")
    assert WaitKey.objects.get().consumed_at is None


def test_no_secret_is_in_the_log_the_events_or_the_database(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    session = running_session()
    first, second = wait(session), wait(session)
    waits.resume_wait(key_of(second), "x", "1")
    with pytest.raises(TokenConsumed) as refused:
        waits.resume_wait(key_of(second), "x", "2")
    rows = [str(row) for model in (WaitKey, Prompt) for row in model.objects.values()]
    events = [str(event.payload) for event in session.events.all()]
    everything = "\n".join([*rows, *events, caplog.text, str(refused.value.details), str(session_status(session))])
    for opened in (first, second):
        assert key_of(opened).removeprefix("kwt_") not in everything

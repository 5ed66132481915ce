"""A turn that failed with a transient provider error is retried after a delay, once per failure, or withdrawn."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from executors_app.wire.protocol import JournalKind
from sessions_app.agents.services.agent_setup import retry_after_login
from sessions_app.models import Intent, Prompt, TaskSession
from sessions_app.prompts import services as prompts
from sessions_app.prompts.delivery import send_next_prompt
from sessions_app.recovery.rules.resumability import MAX_CLOCK_SKEW
from sessions_app.sessions.services import intents
from sessions_app.sessions.services.status import session_status
from sessions_app.turns.retries import load_due_retries
from tests.supervisor.journals import Journal, Line, ingest
from tests.supervisor.recording_agentctl import recording_agentctl
from tests.supervisor.recording_runtime import with_registry
from tests.supervisor.rows import (
    NO_LEASE,
    change,
    conversation,
    fresh,
    last_payload,
    make_user,
    names,
    prompt_states,
    running_session,
    runs,
)

pytestmark = pytest.mark.django_db(transaction=True)
OVERLOADED = "API Error: 529 Overloaded"


def failure_line(journal: Journal, message_id: str, message: str = OVERLOADED, code: str = "agent_error") -> Line:
    return journal.line(JournalKind.TURN_FAILED, message_id=message_id, code=code, message=message)


def failed_turn(
    *between: Line, journal: Journal, message: str = OVERLOADED, code: str = "agent_error", **fields: Any
) -> TaskSession:
    """Return a session whose turn ``p1`` has just failed."""
    session = running_session(**fields)
    Prompt.objects.create(session=session, message_id="p1", text="write it", state="sending")
    ingest(session, [*journal.turn_begins("p1"), *between, failure_line(journal, "p1", message, code)])
    return fresh(session)


def test_turn_without_a_login_is_resent_once_after_the_login() -> None:
    session = failed_turn(journal=Journal(), message="Authentication required", code="auth_required")
    assert not session.prompts.filter(state="queued").exists(), "nothing is retried before a login"
    assert retry_after_login(session.id) == 1
    row = queued_retry(session)
    assert (row.text, row.trouble, row.not_before) == ("write it", "auth_required", None)
    assert retry_after_login(session.id) == 0


def test_login_resends_no_turn_that_failed_otherwise_or_was_stopped() -> None:
    other = failed_turn(journal=Journal(), message="Invalid request", code="agent_error")
    assert retry_after_login(other.id) == 0
    stopped = failed_turn(journal=Journal(), message="Authentication required", code="auth_required")
    intents.request_stop(stopped.id, None)
    assert retry_after_login(stopped.id) == 0


def test_resend_after_tool_calls_asks_the_agent_to_check_first() -> None:
    session, journal = running_session(), Journal()
    Prompt.objects.create(session=session, message_id="p1", text="write it", state="sending")
    begin, tool = journal.turn_begins("p1"), journal.tool("t1", title="Edit a.py", status="completed")
    ingest(session, [*begin, tool, failure_line(journal, "p1", "Authentication required", "auth_required")])
    assert retry_after_login(session.id) == 1
    text = queued_retry(session).text
    assert "write it" in text
    assert "no longer logged in" in text


def queued_retry(session: TaskSession) -> Prompt:
    return Prompt.objects.get(session=session, kind="retry", state="queued")


def test_retry_is_a_queued_prompt_with_a_start_time() -> None:
    session = failed_turn(journal=Journal())
    row = queued_retry(session)
    assert (row.text, row.attempt, row.trouble, row.trouble_message) == (
        "write it",
        1,
        "provider_overloaded",
        OVERLOADED,
    )
    assert row.not_before is not None
    assert timedelta(seconds=3) < row.not_before - timezone.now() <= timedelta(seconds=5)
    assert Prompt.objects.get(message_id="p1").resent_as == row
    assert prompt_states(session) == {"p1": "done", row.message_id: "queued"}
    assert runs(session) == [("p1", "failed")]
    assert (session.state, session.work_state) == ("WAITING_FOR_INPUT", "working")


@pytest.mark.parametrize("did_something", [False, True])
def test_retry_has_the_files_of_the_prompt_unless_the_agent_has_them(did_something: bool) -> None:
    session, journal = running_session(), Journal()
    files = [{"name": "a.txt"}]
    Prompt.objects.create(session=session, message_id="p1", text="write it", state="sending", attachments=files)
    begin, tool = journal.turn_begins("p1"), journal.tool("t1", title="Edit a.py", status="completed")
    ingest(session, [*begin, *[tool][: int(did_something)], failure_line(journal, "p1")])
    row = queued_retry(session)
    assert (row.text == "write it", row.attachments) == ((False, []) if did_something else (True, files))


def test_retry_is_shown_in_log_conversation_and_status() -> None:
    session = failed_turn(journal=Journal())
    recorded = last_payload(session, "session.run.retrying")
    assert (recorded["attempt"], recorded["of"], recorded["error_code"]) == (1, 5, "provider_overloaded")
    role, text, payload, _ = conversation(session)[-1]
    assert (role, payload["level"]) == ("status", "warning")
    assert OVERLOADED in text
    assert "(1 of 5)" in text
    retry = session_status(session)["retry"]
    assert retry == {
        "message_id": queued_retry(session).message_id,
        "attempt": 1,
        "of": 5,
        "at": recorded["at"],
        "error_code": "provider_overloaded",
        "error_message": OVERLOADED,
        "text": "The model’s provider is overloaded.",
    }


@pytest.mark.parametrize(
    ("message", "code"),
    [("API Error: 401 invalid x-api-key", "agent_error"), ("Internal error", "agent_error"), (OVERLOADED, "disk_full")],
)
def test_permanent_error_is_shown_and_not_retried(message: str, code: str) -> None:
    session = failed_turn(journal=Journal(), message=message, code=code)
    assert prompt_states(session) == {"p1": "done"}
    assert conversation(session)[-1][1:3] == (message, {"level": "error"})
    assert (session.work_state, session_status(session)["retry"]) == ("idle", None)


def test_error_is_final_after_the_last_retry(settings: Any) -> None:
    settings.KANDEV_TURN_RETRIES = 2
    journal = Journal()
    session, pauses = failed_turn(journal=journal), []
    for number in (1, 2):
        row = queued_retry(session)
        assert row.not_before is not None
        pauses.append(round((row.not_before - row.created_at).total_seconds()))
        assert (row.attempt, row.text) == (number, "write it")
        change(row, state="sending")
        ingest(session, [*journal.turn_begins(row.message_id), failure_line(journal, row.message_id)])
    assert pauses == [5, 10]
    assert not Prompt.objects.filter(state="queued").exists()
    assert conversation(session)[-1][1:3] == (OVERLOADED, {"level": "error"})
    assert fresh(session).work_state == "idle"


def test_success_resets_the_retry_count() -> None:
    journal = Journal()
    session = failed_turn(journal=journal)
    row = queued_retry(session)
    change(row, state="sending")
    ingest(session, [*journal.turn_begins(row.message_id), journal.completes(row.message_id)])
    Prompt.objects.create(session=session, message_id="p2", text="and then", state="sending")
    ingest(session, [*journal.turn_begins("p2"), failure_line(journal, "p2")])
    assert queued_retry(session).attempt == 1


@pytest.mark.parametrize("in_one_batch", [True, False])
def test_retry_after_tool_calls_asks_the_agent_to_check_first(in_one_batch: bool) -> None:
    session, journal = running_session(), Journal()
    Prompt.objects.create(session=session, message_id="p1", text="write it", state="sending")
    lines = [
        *journal.turn_begins("p1"),
        journal.tool("t0", title="ls", status="completed"),
        journal.tool("t1", title="rm -r build"),
        failure_line(journal, "p1"),
    ]
    for batch in [lines] if in_one_batch else [[line] for line in lines]:
        ingest(session, batch)
    text = queued_retry(session).text
    assert "> write it" in text
    assert "rm -r build" in text
    assert "do not repeat" in text


def test_tool_calls_of_an_earlier_turn_do_not_count() -> None:
    session, journal = running_session(), Journal()
    Prompt.objects.create(session=session, message_id="p0", text="look", state="sending")
    tool = journal.tool("t1", title="ls", status="completed")
    ingest(session, [*journal.turn_begins("p0"), tool, journal.completes("p0")])
    Prompt.objects.create(session=session, message_id="p1", text="write it", state="sending")
    ingest(session, [*journal.turn_begins("p1"), failure_line(journal, "p1")])
    assert queued_retry(session).text == "write it"


def test_failure_reported_twice_is_retried_once() -> None:
    journal = Journal()
    session = failed_turn(journal=journal)
    ingest(session, [failure_line(journal, "p1")])
    assert Prompt.objects.filter(kind="retry").count() == 1


@pytest.mark.parametrize("fields", [{"desired_state": "stopped"}, {"state": "CANCELLED"}])
def test_session_that_should_not_run_is_not_retried(fields: dict[str, Any]) -> None:
    session = failed_turn(journal=Journal(), **fields)
    assert not Prompt.objects.filter(session=session, kind="retry").exists()


def test_turn_with_a_pending_cancel_is_not_retried() -> None:
    session, journal = running_session(), Journal()
    Prompt.objects.create(session=session, message_id="p1", text="write it", state="sending")
    ingest(session, journal.turn_begins("p1"))
    Intent.objects.create(session=session, kind="cancel", payload={"message_id": "p1"})
    ingest(session, [failure_line(journal, "p1")])
    assert prompt_states(session) == {"p1": "done"}


def stop(session: TaskSession) -> None:
    intents.request_stop(session.id, make_user())


def withdraw(session: TaskSession) -> None:
    prompts.withdraw_prompt(session.id, queued_retry(session).message_id)


def cancel(session: TaskSession) -> None:
    assert intents.request_cancel(session.id, make_user())


@pytest.mark.parametrize("end", [cancel, stop, withdraw])
def test_user_can_withdraw_the_retry(end: Any) -> None:
    session = failed_turn(journal=Journal())
    end(session)
    row = Prompt.objects.get(kind="retry")
    assert (row.state, fresh(session).work_state) == ("withdrawn", "idle")
    assert session_status(fresh(session))["retry"] is None
    assert not intents.request_cancel(session.id, make_user())


@pytest.mark.parametrize(
    ("away", "sent"),
    [(timedelta(seconds=30), []), (timedelta(seconds=-1), ["retry:1"]), (MAX_CLOCK_SKEW * 2, ["retry:1"])],
    ids=["not yet", "due", "the clock was wrong"],
)
def test_retry_is_sent_when_due_and_other_prompts_wait_behind_it(away: timedelta, sent: list[str]) -> None:
    session = running_session(execution=NO_LEASE)
    Prompt.objects.create(session=session, message_id="p2", text="and then")
    Prompt.objects.create(
        session=session, message_id="retry:1", kind="retry", text="write it", not_before=timezone.now() + away
    )

    async def look(registry: Any) -> None:
        assert await registry.open_stream(session.id) is not None
        for _ in range(2):
            await send_next_prompt(registry, session.id)

    with recording_agentctl(session) as agentctl:
        with_registry(look)
    assert [body["message_id"] for body in agentctl.prompts] == sent
    assert prompt_states(session)["p2"] == "queued"


def test_supervisor_loads_retries_when_they_are_due() -> None:
    session = failed_turn(journal=Journal())
    assert load_due_retries() == frozenset()
    change(queued_retry(session), not_before=timezone.now() - timedelta(seconds=1))
    assert load_due_retries() == {session.id}


def test_exit_of_the_agent_keeps_the_retry_queued() -> None:
    journal = Journal()
    session = failed_turn(journal=journal)
    ingest(session, [journal.exits()])
    assert queued_retry(session).attempt == 1
    assert "session.run.interrupted" not in names(session)

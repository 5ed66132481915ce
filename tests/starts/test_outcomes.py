"""The ends of starts and stops: what is kept, what is recorded, and when a start is not retried."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from executors_app.models import AgentProfile, Executor
from executors_app.plugins import agent_types
from executors_app.wire.errors import AgentctlRefused, AgentctlUnreachable, WorkspaceGone
from executors_app.wire.token_redaction import token_fingerprint
from sessions_app.models import Intent, Prompt, TaskSession
from sessions_app.pages.labels import receipt_label
from sessions_app.recovery.rules.verification import LOST_TOKEN
from sessions_app.sessions.services import intents
from sessions_app.starts.outcomes import (
    StartFailure,
    settle_intent,
    start_failure_from,
    write_start_failure,
    write_stopped,
)
from tests.attention.reading import as_read
from tests.pages.world import supervise
from tests.supervisor import database_dump
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.rows import (
    MINE,
    change,
    execution_of,
    fresh,
    permission_states,
    prompt_states,
    running_session,
    runs,
    shown_situation,
)

pytestmark = pytest.mark.django_db

CRASHED = StartFailure("agent_exited", "It ended at once.")
GONE = StartFailure("token_rejected", "No conversation found.", token_valid=False)


def starting_session(**fields: Any) -> tuple[TaskSession, Intent]:
    """Return a session whose start this supervisor has claimed, and its intent."""
    session = running_session(**{"launch_id": "", "state": "STARTING", "start_attempts": 1, **fields})
    intent = Intent.objects.create(
        session=session, kind="start", payload={"mode": "auto", "strategy": "native"}, claimed_generation=1
    )
    return session, intent


def fail(session: TaskSession, intent: Intent, failure: StartFailure) -> TaskSession:
    write_start_failure(session.id, intent.id, MINE, failure)
    return fresh(session)


# --- failures ---


def test_failed_start_is_retried_later() -> None:
    session = fail(*starting_session(), CRASHED)
    row, receipt = execution_of(session), session.receipts.get()
    assert (session.state, session.error_code, session.error_message) == ("ERROR", "agent_exited", "It ended at once.")
    assert session.next_restart_at is not None
    assert 0 < (session.next_restart_at - timezone.now()).total_seconds() <= 5
    assert (row.resume_token, row.status) == ("conversation-1", "ready")
    assert (receipt.kind, receipt.strategy, receipt.reason) == ("failed", "native", "agent_exited")
    assert session.intents.get(kind="start", claimed_generation=1, outcome="agent_exited").done_at is not None


def test_retry_delay_grows_with_each_failure() -> None:
    waits = []
    for attempts in (1, 2, 3, 4):
        session = fail(*starting_session(start_attempts=attempts), CRASHED)
        assert session.next_restart_at is not None
        waits.append((session.next_restart_at - timezone.now()).total_seconds())
    for wait, most in zip(waits, (5, 10, 20, 40), strict=True):
        assert most / 2 - 1 < wait <= most


def test_session_is_given_up_after_five_failed_starts() -> None:
    session = fail(*starting_session(start_attempts=5), CRASHED)
    assert (session.state, session.error_code, session.next_restart_at) == ("FAILED", "agent_exited", None)
    assert "It ended at once." in session.error_message
    assert session.task.state == "FAILED"
    assert execution_of(session).resume_token == "conversation-1"


def test_permanent_failure_is_retried_after_an_hour() -> None:
    session = fail(
        *starting_session(start_attempts=5), StartFailure("spawn_failed", "No such program.", permanent=True)
    )
    assert session.state == "ERROR"
    assert session.next_restart_at is not None
    assert session.next_restart_at - timezone.now() > timedelta(minutes=59)


NEEDS_PERSON = [
    (
        "program_missing",
        (
            "Codex is not installed on the executor “local”: its program `codex-acp` was not found. "
            "Install it there with `npm install -g @agentclientprotocol/codex-acp`, then try again. "
            "Details: No such program."
        ),
        "The agent’s program is not installed",
        "Not started: the agent’s program is not installed",
    ),
    (
        "auth_required",
        (
            "Codex is not logged in on the executor “local”. Run `codex-acp cli login` there once or set "
            "`OPENAI_API_KEY` in the environment of the agent profile “Agent”, then try again. "
            "Details: No such program."
        ),
        "The agent is not logged in",
        "Not started: the agent is not logged in",
    ),
]


@pytest.mark.parametrize(("code", "message", "what", "receipt"), NEEDS_PERSON)
def test_missing_installation_is_reported_with_its_command(code: str, message: str, what: str, receipt: str) -> None:
    supervise()
    session, intent = starting_session(start_attempts=5)
    AgentProfile.objects.update(agent_type="codex", name="Agent", command=[], args=[])
    Executor.objects.update(name="local")
    session = fail(fresh(session), intent, StartFailure(code, "No such program.", permanent=True))
    assert (session.state, session.error_code, session.error_message) == ("ERROR", code, message)
    assert session.next_restart_at is not None
    assert session.next_restart_at - timezone.now() > timedelta(hours=22), (
        "the start is not retried as for a transient error"
    )
    assert session.start_attempts == 0, "these starts do not count as attempts"
    item = as_read(session.attention.get(resolved_at=None))
    assert (item.kind, item.what) == ("error", what)
    assert "install" in item.why or "logged in" in item.why
    row = session.receipts.get()
    assert (receipt_label(row, is_first=True).text, row.evidence["message"]) == (receipt, message)
    shown = shown_situation(session)
    assert (shown.text, shown.action) == (message, "try_again")
    assert "once a day" in shown.next_step


def test_custom_program_is_named_without_an_install_command() -> None:
    session, intent = starting_session()
    AgentProfile.objects.update(agent_type="codex", name="Mine", command=["/opt/mine"], args=[])
    session = fail(fresh(session), intent, StartFailure("program_missing", "No.", permanent=True))
    assert "`/opt/mine` of the agent profile “Mine” was not found" in session.error_message
    assert "npm" not in session.error_message


def test_every_agent_type_that_needs_a_program_has_an_install_command() -> None:
    assert [kind.name for kind in agent_types().values() if bool(kind.needs) != bool(kind.install)] == []


def test_rejected_token_is_set_aside_and_the_user_decides() -> None:
    session = fail(*starting_session(next_restart_at=timezone.now()), GONE)
    row = execution_of(session)
    assert (row.resume_token, row.rejected_resume_token) == ("", "conversation-1")
    assert (session.state, session.error_code, session.next_restart_at) == ("WAITING_FOR_INPUT", "token_rejected", None)
    assert session.receipts.get().kind == "failed"


@pytest.mark.parametrize(
    ("failure", "is_lost"),
    [(GONE, True), (StartFailure("resume_unsupported", "This agent cannot resume."), False)],
    ids=["the agent has lost it", "the agent cannot resume"],
)
def test_conversation_is_recorded_as_lost_only_if_its_agent_says_so(failure: StartFailure, is_lost: bool) -> None:
    session = fail(*starting_session(), failure)
    assert execution_of(session).rejected_resume_token == "conversation-1"
    assert session.metadata.get(LOST_TOKEN) == (token_fingerprint("conversation-1") if is_lost else None)


def test_token_rejected_again_is_still_kept() -> None:
    session, intent = starting_session(execution={"resume_token": "", "rejected_resume_token": "conversation-1"})
    fail(session, intent, GONE)
    assert execution_of(session).rejected_resume_token == "conversation-1"


def test_workspace_failure_is_recorded_on_the_execution() -> None:
    session = fail(*starting_session(), StartFailure("launch_failed", "Nobody answered.", executor_failed=True))
    row = execution_of(session)
    assert (row.status, row.error_code, row.error_message) == ("error", "launch_failed", "Nobody answered.")
    assert session.error_code == "launch_failed"


def test_start_overtaken_by_a_stop_is_no_failure() -> None:
    session, intent = starting_session()
    intents.request_stop(session.id, None)
    before = fresh(session).last_seq
    session = fail(session, intent, CRASHED)
    assert fresh(intent).done_at is None, "it is settled once what it has launched has ended"
    assert not session.receipts.exists()
    assert (session.state, session.last_seq) == ("STARTING", before)


def test_finished_start_cannot_fail_afterwards() -> None:
    session, intent = starting_session()
    settle_intent(intent.id, "loaded")
    before = database_dump.dump()
    write_start_failure(session.id, intent.id, None, StartFailure("start_timeout", "Too long."))
    assert database_dump.dump() == before


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (AgentctlUnreachable("No answer."), StartFailure("agentctl_unreachable", "No answer.")),
        (WorkspaceGone("Deleted."), StartFailure("worktree_missing", "Deleted.", permanent=True)),
        (
            AgentctlRefused("No.", status=500, refusal="spawn_failed", answer={"permanent": True, "token_valid": True}),
            StartFailure("spawn_failed", "No.", permanent=True),
        ),
        (
            AgentctlRefused("Gone.", status=500, refusal="token_rejected", answer={"token_valid": False}),
            StartFailure("token_rejected", "Gone.", token_valid=False),
        ),
        (AgentctlRefused("Busy.", status=409, refusal="busy"), StartFailure("busy", "Busy.")),
    ],
)
def test_error_maps_to_the_expected_start_failure(error: Any, failure: StartFailure) -> None:
    assert start_failure_from(error, executor_failed=False) == failure


# --- stops ---


def test_stop_leaves_nothing_open_and_the_session_resumable() -> None:
    session, journal = running_session(stopped_by_user=True, desired_state="stopped"), Journal()
    Prompt.objects.create(session=session, message_id="p1", text="do it", state="sending")
    ingest(session, [*journal.turn_begins("p1"), journal.requests_permission("q1")])
    write_stopped(session.id, MINE, "stopped")
    session, row = fresh(session), execution_of(session)
    assert (session.state, session.work_state, session.launch_id) == ("WAITING_FOR_INPUT", "idle", "")
    assert (row.status, row.status_reason, row.resume_token) == ("stopped", "stopped", "conversation-1")
    assert runs(session) == [("p1", "interrupted")]
    assert prompt_states(session) == {"p1": "interrupted"}
    assert permission_states(session) == {"q1": "expired"}
    assert not session.receipts.exists()


@pytest.mark.parametrize(("close_as", "state"), [("completed", "COMPLETED"), ("cancelled", "CANCELLED")])
@pytest.mark.parametrize("before", ["CREATED", "RUNNING", "ERROR", "FAILED"])
def test_session_can_be_closed_from_any_state(before: str, close_as: str, state: str) -> None:
    session = running_session()
    ingest(session, Journal().turn_begins("p1"))
    change(session, state=before)
    write_stopped(session.id, MINE, "closed", close_as)
    assert (fresh(session).state, fresh(session).work_state) == (state, "done")
    assert runs(session) == [("p1", "interrupted")]


def test_error_prone_agent_is_asked_twice_about_a_lost_conversation() -> None:
    session, intent = starting_session()
    AgentProfile.objects.filter(id=session.agent_profile_id).update(agent_type="gemini")
    once = fail(session, intent, GONE)
    assert (once.state, execution_of(once).resume_token) == ("ERROR", "conversation-1")
    assert once.next_restart_at is not None
    long_ago = (timezone.now() - timedelta(seconds=91)).isoformat()
    change(once, metadata={"said_gone_at": long_ago}, next_restart_at=None)
    twice = fail(once, intents.ensure_start_intent(once, None, "auto"), GONE)
    assert (twice.state, execution_of(twice).rejected_resume_token) == ("WAITING_FOR_INPUT", "conversation-1")

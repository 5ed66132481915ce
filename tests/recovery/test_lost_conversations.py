"""A turn that reveals a wrong or lost conversation has the same result as a start that does."""

from __future__ import annotations

import pytest

from executors_app.models import AgentProfile
from executors_app.wire.protocol import JournalKind
from sessions_app.models import TaskSession
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.rows import change, execution_of, fresh, running_session, runs

pytestmark = pytest.mark.django_db


def resumed_session() -> TaskSession:
    """Return a session whose resume can only be proven by its first turn."""
    session = running_session()
    session.receipts.create(kind="resumed", verified="pending", launch_id=session.launch_id, strategy="native")
    return session


def fail_first_turn(session: TaskSession, code: str) -> TaskSession:
    journal = Journal()
    begun = journal.turn_begins("p1")
    failed = journal.line(JournalKind.TURN_FAILED, message_id="p1", code=code, message="In its own words.")
    ingest(session, [*begun, failed, journal.exits(expected=True)])
    return fresh(session)


def test_lost_conversation_sets_its_token_aside_and_waits_for_the_user() -> None:
    session = fail_first_turn(resumed_session(), "token_rejected")

    row, receipt = execution_of(session), session.receipts.get()
    assert (row.resume_token, row.rejected_resume_token) == ("", "conversation-1")
    assert (session.state, session.error_code, session.launch_id) == ("WAITING_FOR_INPUT", "token_rejected", "")
    assert (receipt.kind, receipt.verified, receipt.reason) == ("failed", "none", "token_rejected")
    assert receipt.evidence["message"] == "In its own words."
    assert [state for _, state in runs(session)] == ["failed"]
    assert session.next_restart_at is None


def test_other_conversation_is_quarantined_and_keeps_its_token() -> None:
    session = fail_first_turn(resumed_session(), "context_mismatch")

    row, receipt = execution_of(session), session.receipts.get()
    assert (row.resume_token, row.rejected_resume_token) == ("conversation-1", "")
    assert (session.state, session.error_code, session.context_mismatch) == ("ERROR", "context_mismatch", True)
    assert (receipt.kind, receipt.verified, receipt.reason) == ("failed", "none", "context_mismatch")


def test_error_prone_agent_is_not_believed_immediately() -> None:
    session = resumed_session()
    gemini = AgentProfile.objects.create(name="Gemini", agent_type="gemini")
    session = fail_first_turn(change(session, agent_profile=gemini), "token_rejected")

    assert execution_of(session).resume_token == "conversation-1"
    assert session.next_restart_at is not None


@pytest.mark.parametrize("code", ["agent_error", "auth_required", "agent_stuck"])
def test_other_errors_do_not_affect_the_conversation(code: str) -> None:
    session = fail_first_turn(resumed_session(), code)

    assert execution_of(session).resume_token == "conversation-1"
    assert (session.state, session.context_mismatch) == ("WAITING_FOR_INPUT", False)
    assert session.receipts.get().kind == "resumed"


def test_proven_resume_keeps_its_receipt_when_lost_later() -> None:
    session = resumed_session()
    session.receipts.update(verified="first_turn")

    session = fail_first_turn(session, "context_mismatch")

    receipt = session.receipts.get()
    assert (receipt.kind, receipt.verified) == ("resumed", "first_turn")
    assert session.context_mismatch

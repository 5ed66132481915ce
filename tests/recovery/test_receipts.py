"""A pending receipt is proven by the first turn of its own agent, or not at all."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from executors_app.models import ExecutorRunning
from sessions_app.models import ContinuityReceipt, Prompt, TaskSession, session_transaction
from sessions_app.recovery.rules.verification import fingerprint
from sessions_app.sessions.services.status import session_status
from sessions_app.starts import agent_start
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.rows import change, fresh, last_payload, names, running_session
from tests.supervisor.start_claims import claim_start

pytestmark = pytest.mark.django_db


def resumed_session(**fields: Any) -> tuple[TaskSession, ContinuityReceipt]:
    """Return a session whose agent was resumed and has had no turn since, and its receipt."""
    session = running_session()
    evidence = {"fingerprint_after": fingerprint("conversation-1")}
    values = {"kind": "resumed", "verified": "pending", "launch_id": session.launch_id, "evidence": evidence}
    return session, session.receipts.create(**{**values, **fields})


def complete_turn(session: TaskSession) -> None:
    Prompt.objects.create(session=session, message_id="p1", text="go on", state="sending")
    journal = Journal()
    ingest(session, [*journal.turn_begins("p1"), journal.completes("p1")])


@pytest.mark.parametrize(
    ("agent_type", "kind", "verified"),
    [
        ("demo", "resumed", "unproven"),
        ("demo", "loaded", "unproven"),
        ("codex_cli", "resumed", "first_turn"),
        ("demo", "injected", "first_turn"),
    ],
)
def test_completed_turn_proves_what_its_agent_type_allows(agent_type: str, kind: str, verified: str) -> None:
    session, receipt = resumed_session(kind=kind)
    change(session.agent_profile, agent_type=agent_type)
    complete_turn(session)
    assert fresh(receipt).verified == verified
    assert last_payload(session, "session.receipt")["verified"] == verified


def test_turn_of_another_conversation_is_no_proof() -> None:
    session, receipt = resumed_session(evidence={"fingerprint_after": fingerprint("another")})
    complete_turn(session)
    assert fresh(receipt).verified == "none"


def test_agent_that_exits_before_its_first_turn_proves_nothing() -> None:
    session, receipt = resumed_session()
    ingest(session, [Journal().exits()])
    assert fresh(receipt).verified == "none"
    assert last_payload(session, "session.receipt")["kind"] == "resumed"


def test_turn_of_a_later_agent_does_not_prove_an_earlier_receipt() -> None:
    session, receipt = resumed_session(launch_id="an earlier launch")
    complete_turn(session)
    assert fresh(receipt).verified == "pending"


def test_later_start_settles_an_open_receipt() -> None:
    session, receipt = resumed_session()
    ExecutorRunning.objects.update(status="stopped")
    plan = claim_start(change(session, launch_id=""))
    order = agent_start.prepare_agent_start(plan, plan.lease, found="")
    assert order is not None
    answer = {"outcome": "resumed", "resume_token": "conversation-1"}
    assert agent_start.write_agent_started(
        plan, plan.lease, order, answer, agent_start.load_conversation_facts(plan.session_id)
    )
    assert fresh(receipt).verified == "none"
    newest = session.receipts.first()
    assert newest is not None
    assert newest.verified != "none"


def test_proven_receipt_stays_proven() -> None:
    session, receipt = resumed_session(kind="loaded", verified="replay")
    ingest(session, [Journal().exits()])
    assert fresh(receipt).verified == "replay"


@pytest.mark.parametrize("verified", ["replay", "quoted", "same_process", "none"])
def test_completed_turn_changes_no_receipt_that_is_settled(verified: str) -> None:
    session, receipt = resumed_session(kind="loaded", verified=verified)
    complete_turn(session)
    assert fresh(receipt).verified == verified
    assert "session.receipt" not in names(session)


def test_clock_that_is_set_back_does_not_hide_the_newest_receipt() -> None:
    session = running_session()
    with session_transaction(session.id) as transaction:
        transaction.write_receipt("resumed", "pending")
    session.receipts.update(created_at=timezone.now() + timedelta(hours=1))
    with session_transaction(session.id) as transaction:
        transaction.write_receipt("loaded", "replay")
        transaction.write_receipt("fresh", "none")
    assert [receipt.kind for receipt in session.receipts.all()] == ["fresh", "loaded", "resumed"]
    assert session_status(fresh(session))["latest_receipt"]["kind"] == "fresh"

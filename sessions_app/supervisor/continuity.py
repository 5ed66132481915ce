"""Continuity of an agent's conversation: its stored id, memory checks, and the receipts that record the proof."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from django.db.models import Count, Q, QuerySet, Subquery

from executors_app.models import ExecutorRunning
from executors_app.plugins import agent_type
from sessions_app.domain import attention, verification
from sessions_app.domain.resumability import Strategy
from sessions_app.domain.states import PromptKind, RunState
from sessions_app.domain.verification import (
    REJECTED_TOKEN_OF,
    TOKEN_OF,
    ReceiptKind,
    TokenBinding,
    Verdict,
    Verified,
    fingerprint,
)
from sessions_app.models import ContinuityReceipt, IntentKind, Message, Prompt, Run, SessionTransaction, TaskSession
from sessions_app.models.attention import update_wording
from sessions_app.models.bulk import update_row
from sessions_app.services import prompt_context


def current_binding(session: TaskSession, execution: ExecutorRunning) -> TokenBinding:
    """What a conversation that is opened now belongs to."""
    profile = session.agent_profile
    return TokenBinding(str(profile.pk), profile.agent_type, execution.workspace_path)


def store_reported_token(
    transaction: SessionTransaction, execution: ExecutorRunning, told: Mapping[str, Any] | None
) -> list[str]:
    """What agentctl says of its agent's conversation; the names of the fields that are to be saved."""
    token = str(told.get("resume_token") or "") if told else ""
    if not told or token in ("", execution.rejected_resume_token) or _is_unproven(transaction, execution, token):
        return []
    if not execution.resume_token:
        _note_metadata(transaction, TOKEN_OF, current_binding(transaction.session, execution).to_json())
    execution.resume_token = token
    execution.last_message_uuid = str(told.get("last_message_uuid") or "")
    return ["resume_token", "last_message_uuid"]


def _is_unproven(transaction: SessionTransaction, execution: ExecutorRunning, token: str) -> bool:
    """Another conversation in place of the one we have: whether it works, the start that opened it will say.

    The agent that is up may go on under another name; any other word is of a start that is under way or has failed.
    """
    if execution.resume_token == token or not (execution.resume_token or execution.rejected_resume_token):
        return False
    start = transaction.session.intents.filter(kind=IntentKind.START, done_at=None).first()
    opens_new = start is not None and start.payload.get("strategy") in (Strategy.FRESH, Strategy.HISTORY)
    return opens_new or not transaction.session.launch_id


def replace_token(transaction: SessionTransaction, execution: ExecutorRunning, token: str, strategy: str) -> None:
    """A start has worked with this conversation; what it replaces is set aside, and what was aside may be back."""
    old = execution.resume_token
    if old and old != token and strategy != Strategy.NATIVE:
        execution.rejected_resume_token = old
        _note_metadata(transaction, REJECTED_TOKEN_OF, transaction.session.metadata.get(TOKEN_OF))
    execution.resume_token = token or (old if strategy == Strategy.NATIVE else "")  # some name it in their first turn
    if token:
        _note_metadata(transaction, TOKEN_OF, current_binding(transaction.session, execution).to_json())
    if token and execution.rejected_resume_token == token:
        execution.rejected_resume_token = ""


def set_token_aside(transaction: SessionTransaction) -> None:
    """The agent itself says that it does not have this conversation: kept apart, to be tried again."""
    execution = transaction.execution
    if execution is not None and execution.resume_token:
        execution.rejected_resume_token, execution.resume_token = execution.resume_token, ""
        execution.save(update_fields=["rejected_resume_token", "resume_token", "updated_at"])
        _note_metadata(transaction, REJECTED_TOKEN_OF, transaction.session.metadata.get(TOKEN_OF))


def _note_metadata(transaction: SessionTransaction, key: str, value: Any) -> None:
    transaction.set_fields(metadata={**transaction.session.metadata, key: value})


_CHECKABLE = frozenset({Verified.UNPROVEN, Verified.PENDING})


def completed_turns(session_id: uuid.UUID) -> QuerySet[Run]:
    """The turns that were asked for and completed; those that only checked a memory are none of them."""
    done = Run.objects.filter(session_id=session_id, state=RunState.COMPLETED).order_by()
    return done.exclude(message_id__startswith=verification.MEMORY_CHECK_PREFIX)


def last_user_request(session_id: uuid.UUID) -> str | None:
    """The user's text of the last completed turn; None where none was completed."""
    last_turn = completed_turns(session_id).order_by("-started_at").values("message_id")[:1]
    prompts = Prompt.objects.filter(session_id=session_id, message_id=Subquery(last_turn))
    return prompts.values_list("text", flat=True).first()


def queue_memory_check(
    transaction: SessionTransaction, launch_id: str, verdict: Verdict, last_request: str | None
) -> None:
    """Queue the question before all other prompts, where the profile wants it and nothing else has proven the start."""
    taken_up = verdict.kind in (ReceiptKind.LOADED, ReceiptKind.RESUMED) and verdict.verified in _CHECKABLE
    if not (taken_up and last_request and transaction.session.agent_profile.memory_check):
        return
    row, made = Prompt.objects.get_or_create(
        session=transaction.session,
        message_id=f"{verification.MEMORY_CHECK_PREFIX}{launch_id}",
        defaults={"text": verification.MEMORY_CHECK_PROMPT, "kind": PromptKind.CHECK},
    )
    if made:
        transaction.record_event("session.prompt.queued", message_id=row.message_id, kind=row.kind, state=row.state)


def judge_memory_check(transaction: SessionTransaction, receipt: ContinuityReceipt, answer: str) -> Verified | None:
    """What the answer proves of a start; None: nothing, which is said in the receipt and in the inbox."""
    request = last_user_request(transaction.session.id)
    if request and verification.quotes_request(answer, request):
        return Verified.QUOTED
    receipt.evidence = {**receipt.evidence, "memory_check": verification.NOT_QUOTED}
    receipt.save(update_fields=["evidence"])
    notice = attention.unproven_notice(str(receipt.id), verification.NOT_QUOTED)
    update_wording(notice)
    return None


def mark_history_delivered(transaction: SessionTransaction, message_id: str) -> None:
    """The agent has a prompt: a history that it carried is injected now, and not before."""
    injected = transaction.session.inject_history
    if prompt_context.mark_context_delivered(transaction, message_id) and injected:
        receipt = _current_receipt(transaction)
        if receipt is not None and receipt.kind == ReceiptKind.INJECTED:
            receipt.evidence = {
                **receipt.evidence,
                "injected_with": message_id,
                "injected_at": transaction.at.isoformat(),
            }
            update_row(receipt, ["evidence"])


def resend_history(transaction: SessionTransaction, message_id: str) -> None:
    """The agent refused this prompt, so it does not keep the history that came with it (ACP on ``refusal``)."""
    receipt = _current_receipt(transaction)
    if receipt is not None and receipt.evidence.get("injected_with") == message_id:
        transaction.set_fields(inject_history=True)


def settle_pending_receipt(transaction: SessionTransaction, *, failed: bool) -> None:
    """The first turn after a resume proves or refutes what was pending (rules, section 9)."""
    receipt = _current_receipt(transaction)
    if receipt is None or receipt.verified != Verified.PENDING or transaction.execution is None:
        return
    token = transaction.execution.resume_token
    verified = verification.after_first_turn(
        Verdict(ReceiptKind(receipt.kind), Verified.PENDING),
        str(receipt.evidence.get("fingerprint_after") or ""),
        fingerprint(token) if token else "",
        failed=failed,
        names_conversation=agent_type(transaction.session.agent_profile.agent_type).names_conversation,
    )
    _record_verdict(transaction, receipt, verified)


def settle_memory_check(transaction: SessionTransaction, answer: str) -> None:
    """The agent has answered what its last request was."""
    receipt = _current_receipt(transaction)
    if receipt is not None and receipt.verified in (Verified.UNPROVEN, Verified.PENDING):
        verified = judge_memory_check(transaction, receipt, answer)
        if verified is not None:
            _record_verdict(transaction, receipt, verified)


def rebuild_evidence(transaction: SessionTransaction) -> dict[str, str]:
    """The evidence that the launch found the workspace lost, and from what it was made again; empty for none."""
    said = transaction.execution.state.get("rebuilt") if transaction.execution else ""
    return {"workspace_rebuilt": str(said)} if said else {}


def refute_receipt(transaction: SessionTransaction, reason: str, message: str) -> None:
    """A turn has shown that the agent is not in the conversation that it was to go on in; once proven stays proven."""
    receipt = _current_receipt(transaction)
    if receipt is None or receipt.verified not in (Verified.PENDING, Verified.UNPROVEN, Verified.NONE):
        return
    receipt.kind, receipt.reason = ReceiptKind.FAILED, reason
    receipt.evidence = {**receipt.evidence, "message": message}
    update_row(receipt, ["kind", "reason", "evidence"])
    _record_verdict(transaction, receipt, Verified.NONE)


def mark_receipt_unproven(transaction: SessionTransaction, but: str = "") -> None:
    """The agent left before any turn of its could prove what was pending: nothing will. ``but``: of this launch."""
    for receipt in transaction.session.receipts.filter(verified=Verified.PENDING):
        if receipt.launch_id != but or not but:
            _record_verdict(transaction, receipt, Verified.NONE)


def process_evidence(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Which process it is, by the answer to a start or by ``agent`` of a status."""
    return {"agent_pid": answer.get("pid"), "agent_started_at": answer.get("started_at")}


def conversation_evidence(token_before: str, answer: Mapping[str, Any]) -> dict[str, Any]:
    """Which conversation it is: fingerprints of its id before and after, and how much of it was replayed."""
    token = str(answer.get("resume_token") or "")
    return {
        "fingerprint_before": fingerprint(token_before) if token_before else None,
        "fingerprint_after": fingerprint(token) if token else None,
        "replayed_messages": int(answer.get("replayed", 0)),
    }


def count_log(session_id: uuid.UUID) -> dict[str, int]:
    """What the log has of its conversation: messages, and tool calls that were interrupted."""
    counts: dict[str, int] = Message.objects.filter(session_id=session_id).aggregate(
        log_messages=Count("id", filter=Q(role__in=("user", "agent"))),
        tool_calls_interrupted=Count("id", filter=Q(role="tool", payload__status="interrupted")),
    )
    return counts


def is_same_directory(transaction: SessionTransaction, directory: str) -> bool | None:
    """Whether the conversation was opened where the agent is now; None where nobody knows."""
    kept = transaction.session.metadata.get(TOKEN_OF)
    return kept.get("directory") == directory if isinstance(kept, dict) else None


def _current_receipt(transaction: SessionTransaction) -> ContinuityReceipt | None:
    """Of the start that brought up the agent which is here; another's is not for its turns to prove."""
    if not transaction.session.launch_id:
        return None
    return transaction.session.receipts.filter(launch_id=transaction.session.launch_id).first()


def _record_verdict(transaction: SessionTransaction, receipt: ContinuityReceipt, verified: Verified) -> None:
    receipt.verified = verified
    update_row(receipt, ["verified"])
    transaction.record_event(
        "session.receipt", receipt_id=str(receipt.id), kind=receipt.kind, verified=receipt.verified
    )

"""Continuity of an agent's conversation: its stored id (the resume token), memory checks, and receipts with proofs."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from django.db.models import Count, F, Q, QuerySet

from executors_app.models import ExecutorRunning
from executors_app.plugins import agent_type
from executors_app.wire.protocol import Code
from executors_app.wire.replayed_texts import MAX_TEXTS
from sessions_app.attention.models import update_wording
from sessions_app.attention.rules import notices
from sessions_app.kernel.rules.states import PromptKind, RunState, TurnOrigin
from sessions_app.kernel.transactions import ERROR_LIMIT
from sessions_app.models import ContinuityReceipt, IntentKind, Message, Prompt, SessionTransaction, TaskSession, Turn
from sessions_app.prompts import services as prompts
from sessions_app.recovery.rules import verification
from sessions_app.recovery.rules.resumability import Strategy
from sessions_app.recovery.rules.verification import (
    LOST_TOKEN,
    REJECTED_TOKEN_OF,
    TOKEN_OF,
    ReceiptKind,
    TokenBinding,
    Verdict,
    Verified,
    fingerprint,
)
from sessions_app.starts.events import ReceiptWritten
from sessions_app.workspace.services import workspace_notes


def current_binding(session: TaskSession, execution: ExecutorRunning) -> TokenBinding:
    """Return the profile, agent type and directory to which a conversation opened now belongs."""
    profile = session.agent_profile
    return TokenBinding(str(profile.pk), profile.agent_type, execution.workspace_path)


def store_reported_token(
    transaction: SessionTransaction, execution: ExecutorRunning, answer: Mapping[str, Any] | None
) -> list[str]:
    """Set the resume token that agentctl reports for its agent; return the names of the fields to save.

    ``answer`` is that of ``GET /agent/session``. A token that was rejected, or that is not proven to work in place
    of the stored one, is ignored.
    """
    if not answer:
        return []
    token = str(answer.get("resume_token") or "")
    if token in ("", execution.rejected_resume_token) or _is_unproven(transaction, execution, token):
        return []
    if not execution.resume_token:
        _note_metadata(transaction, TOKEN_OF, current_binding(transaction.session, execution).to_json())
    execution.resume_token = token
    execution.last_message_uuid = str(answer.get("last_message_uuid") or "")
    return ["resume_token", "last_message_uuid"]


def _is_unproven(transaction: SessionTransaction, execution: ExecutorRunning, token: str) -> bool:
    """Whether the token belongs to another conversation that has not been proven to work yet.

    A running agent may continue its conversation under a new id. Otherwise a new id comes from a start that is under
    way or has failed, and only the end of that start may replace the stored token.
    """
    if execution.resume_token == token or not (execution.resume_token or execution.rejected_resume_token):
        return False
    start = transaction.session.intents.filter(kind=IntentKind.START, done_at=None).first()
    opens_new = start is not None and start.payload.get("strategy") in (Strategy.FRESH, Strategy.HISTORY)
    return opens_new or not transaction.session.launch_id


def replace_token(transaction: SessionTransaction, execution: ExecutorRunning, token: str, strategy: str) -> None:
    """Store the token of a conversation that a start has proven to work.

    A different old token is set aside as rejected, unless the strategy was native; a rejected token that works again
    is no longer rejected. ``token`` is empty for agents that name their conversation only in their first turn.
    """
    old = execution.resume_token
    if old and old != token and strategy != Strategy.NATIVE:
        execution.rejected_resume_token = old
        _note_metadata(transaction, REJECTED_TOKEN_OF, transaction.session.metadata.get(TOKEN_OF))
    if token or strategy != Strategy.NATIVE:
        execution.resume_token = token
    if token:
        _note_metadata(transaction, TOKEN_OF, current_binding(transaction.session, execution).to_json())
    if token and execution.rejected_resume_token == token:
        execution.rejected_resume_token = ""
        _note_metadata(transaction, LOST_TOKEN, None)


def known_tokens(session: TaskSession, execution: ExecutorRunning) -> frozenset[str]:
    """Return the ids of the session's earlier conversations that an agent may still continue.

    A conversation that its agent has reported as lost is not among them: the same id, as one that is derived from the
    directory, then names an empty conversation.
    """
    lost = session.metadata.get(LOST_TOKEN)
    tokens = {execution.resume_token, execution.rejected_resume_token} - {""}
    return frozenset(token for token in tokens if fingerprint(token) != lost)


def set_token_aside(transaction: SessionTransaction, *, is_lost: bool) -> None:
    """Set the resume token aside as rejected, because the agent cannot resume its conversation; a user may retry it.

    ``is_lost``: the agent has reported that it no longer knows the conversation.
    """
    execution = transaction.execution
    if execution is not None and execution.resume_token:
        execution.rejected_resume_token, execution.resume_token = execution.resume_token, ""
        execution.save(update_fields=["rejected_resume_token", "resume_token", "updated_at"])
        _note_metadata(transaction, REJECTED_TOKEN_OF, transaction.session.metadata.get(TOKEN_OF))
        lost_token = None
        if is_lost:
            lost_token = fingerprint(execution.rejected_resume_token)
        _note_metadata(transaction, LOST_TOKEN, lost_token)


def _note_metadata(transaction: SessionTransaction, key: str, value: Any) -> None:
    transaction.set_fields(metadata={**transaction.session.metadata, key: value})


_CHECKABLE = frozenset({Verified.UNPROVEN, Verified.PENDING})


def completed_turns(session_id: uuid.UUID) -> QuerySet[Turn]:
    """Select the completed turns of a session, without memory checks and turns that the agent began itself."""
    done = Turn.objects.filter(session_id=session_id, state=RunState.COMPLETED).order_by()
    done = done.exclude(origin=TurnOrigin.AGENT)
    return done.exclude(message_id__startswith=verification.MEMORY_CHECK_PREFIX)


def last_user_request(session_id: uuid.UUID) -> str | None:
    """Return the prompt of the last completed turn; None if no turn was completed, or its prompt is not known."""
    newest = completed_turns(session_id).order_by("-started_at", "-id")
    return newest.values_list("prompt__text", flat=True).first()


COMPARED_TEXTS = 5 * MAX_TEXTS
"""Number of turns of which the text is compared with a replay, not only its digest: the last ones.

More than the texts of a replay, because an agent may replay several requests as one text.
"""
CONVERSATION_SINCE = "conversation_since"
"""Key in ``TaskSession.metadata``: ``seq`` of the last event before the agent's present conversation began."""


def mark_new_conversation(transaction: SessionTransaction) -> None:
    """Note that the agent begins another conversation: earlier turns are not part of it."""
    _note_metadata(transaction, CONVERSATION_SINCE, transaction.session.last_seq)


def turns_of_conversation(session: TaskSession) -> QuerySet[Turn]:
    """Select the turns of the present conversation, by ``seq``: receipts have another machine's clock.

    A turn of which it is not known when it began may be part of it.
    """
    noted = session.metadata.get(CONVERSATION_SINCE)
    since = noted if isinstance(noted, int) else 0
    turns = Turn.objects.filter(session=session, has_process=True)
    return turns.filter(Q(first_seq__gt=since) | Q(first_seq=None)).order_by()


def _prompted_turns_of_conversation(session: TaskSession) -> QuerySet[Turn]:
    """Select those that a prompt has begun, except one that the agent has refused unread."""
    turns = turns_of_conversation(session).exclude(origin=TurnOrigin.AGENT)
    return turns.exclude(state=RunState.FAILED, reason=Code.AGENT_BUSY)


def count_requests(session: TaskSession) -> int:
    """Return how many requests the agent got in its present conversation; it may have lost those of other turns."""
    return _prompted_turns_of_conversation(session).count()


def load_requests(session: TaskSession) -> verification.Requests:
    """Return the requests that the agent's present conversation should contain, from the rows of its turns."""
    turns = _prompted_turns_of_conversation(session).exclude(message_id__startswith=verification.MEMORY_CHECK_PREFIX)
    newest_first = turns.order_by(F("first_seq").desc(nulls_last=True), "-id")
    ended = newest_first.filter(state__in=(RunState.COMPLETED, RunState.INTERRUPTED))
    texts = dict(ended.values_list("id", "prompt__text")[:COMPARED_TEXTS])
    rows = ended.values_list("id", "state", "request_digest")
    requests = [(state, verification.Request(digest, texts.get(turn_id))) for turn_id, state, digest in rows]
    return verification.Requests(
        completed=[request for state, request in reversed(requests) if state == RunState.COMPLETED],
        interrupted=next((request for state, request in requests if state == RunState.INTERRUPTED), None),
    )


def queue_memory_check(
    transaction: SessionTransaction, launch_id: str, verdict: Verdict, last_request: str | None
) -> None:
    """Queue a memory check before all other prompts, if the profile requires one and nothing else proves the start."""
    taken_up = verdict.kind in (ReceiptKind.LOADED, ReceiptKind.RESUMED) and verdict.verified in _CHECKABLE
    if not (taken_up and last_request and transaction.session.agent_profile.memory_check):
        return
    # Named after the launch, so that a start that is repeated after a crash asks only once.
    row, made = Prompt.objects.get_or_create(
        session=transaction.session,
        message_id=f"{verification.MEMORY_CHECK_PREFIX}{launch_id}",
        defaults={"text": verification.MEMORY_CHECK_PROMPT, "kind": PromptKind.CHECK},
    )
    if made:
        transaction.record_queued(row)


def judge_memory_check(transaction: SessionTransaction, receipt: ContinuityReceipt, answer: str) -> Verified | None:
    """Return what the answer to a memory check proves; None if nothing, which receipt and inbox item then show."""
    request = last_user_request(transaction.session.id)
    if not request:
        return None
    if verification.quotes_request(answer, request):
        return Verified.QUOTED
    receipt.evidence = {**receipt.evidence, "memory_check": verification.NOT_QUOTED}
    receipt.save(update_fields=["evidence"])
    notice = notices.unproven_notice(str(receipt.id), verification.NOT_QUOTED)
    update_wording(notice)
    return None


def mark_history_delivered(transaction: SessionTransaction, message_id: str) -> None:
    """Record in the receipt that the history was injected, if the delivered prompt carried it.

    Only delivery counts: after a crash before it, the history is sent again.
    """
    injected = transaction.session.inject_history
    if prompts.mark_context_delivered(transaction, message_id) and injected:
        receipt = _current_receipt(transaction)
        if receipt is not None and receipt.kind == ReceiptKind.INJECTED:
            receipt.evidence = {
                **receipt.evidence,
                "injected_with": message_id,
                "injected_at": transaction.at.isoformat(),
            }
            receipt.save(update_fields=["evidence"])


def record_sent_history(transaction: SessionTransaction, facts: Mapping[str, int | None]) -> None:
    """Record in the receipt what the history contains that the next prompt carries."""
    receipt = _current_receipt(transaction)
    if receipt is None or receipt.kind != ReceiptKind.INJECTED or receipt.evidence.get("injection") == facts:
        return
    receipt.evidence = {**receipt.evidence, "injection": dict(facts)}
    receipt.save(update_fields=["evidence"])


def resend_history(transaction: SessionTransaction, message_id: str) -> None:
    """Send the history again with the next prompt if this one carried it.

    In ACP, an agent that ends a turn with ``refusal`` drops the prompt from its conversation, and the history with it.
    """
    receipt = _current_receipt(transaction)
    if receipt is not None and receipt.evidence.get("injected_with") == message_id:
        transaction.set_fields(inject_history=True)


def give_back_context(transaction: SessionTransaction, message_id: str) -> None:
    """Let the next prompt carry what this one carried, because the agent has refused it unread."""
    resend_history(transaction, message_id)
    prompts.restore_context(transaction, message_id)


def settle_pending_receipt(transaction: SessionTransaction, *, failed: bool) -> None:
    """Settle a pending receipt by the first turn after the resume, which proves or refutes it."""
    receipt = _current_receipt(transaction)
    if receipt is None or receipt.verified != Verified.PENDING or transaction.execution is None:
        return
    token = transaction.execution.resume_token
    verified = verification.after_first_turn(
        Verdict(ReceiptKind(receipt.kind), Verified.PENDING),
        str(receipt.evidence.get("fingerprint_after") or ""),
        _fingerprint_of(token) or "",
        failed=failed,
        names_conversation=agent_type(transaction.session.agent_profile.agent_type).names_conversation,
    )
    _record_verdict(transaction, receipt, verified)


def settle_memory_check(transaction: SessionTransaction, answer: str) -> None:
    """Settle the current receipt by the agent's answer to a memory check, if it is not proven yet."""
    receipt = _current_receipt(transaction)
    if receipt is not None and receipt.verified in (Verified.UNPROVEN, Verified.PENDING):
        verified = judge_memory_check(transaction, receipt, answer)
        if verified is not None:
            _record_verdict(transaction, receipt, verified)


def rebuild_evidence(transaction: SessionTransaction) -> dict[str, str]:
    """Return the evidence from what a lost workspace was rebuilt at launch, and what the snapshot lacked.

    Empty if the workspace was not lost.
    """
    execution = transaction.execution
    if execution is None or not execution.state.get("rebuilt"):
        return {}
    evidence = {"workspace_rebuilt": str(execution.state["rebuilt"])}
    workspace = workspace_notes.workspace_json(transaction.session)
    if workspace and workspace["left_out"]:
        lacks = workspace_notes.left_out_sentence(workspace["left_out"], workspace["left_out_count"])
        if lacks:
            evidence["workspace_lacks"] = lacks
    return evidence


def refute_receipt(transaction: SessionTransaction, reason: str, message: str) -> None:
    """Mark the current receipt as failed, because a turn has shown that the agent is not in its conversation.

    A receipt that was proven before stays proven.
    """
    receipt = _current_receipt(transaction)
    if receipt is None or receipt.verified not in (Verified.PENDING, Verified.UNPROVEN, Verified.NONE):
        return
    receipt.kind, receipt.reason = ReceiptKind.FAILED, reason
    receipt.evidence = {**receipt.evidence, "message": message[:ERROR_LIMIT]}
    receipt.save(update_fields=["kind", "reason", "evidence"])
    _record_verdict(transaction, receipt, Verified.NONE)


def mark_receipt_unproven(transaction: SessionTransaction, but: str = "") -> None:
    """Mark pending receipts as unproven: their agent ended before a turn could prove them.

    ``but`` excepts the receipt of this launch id.
    """
    for receipt in transaction.session.receipts.filter(verified=Verified.PENDING):
        if receipt.launch_id != but or not but:
            _record_verdict(transaction, receipt, Verified.NONE)


def process_evidence(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the evidence about the agent process, from the answer to a start or from ``agent`` of a status."""
    return {"agent_pid": answer.get("pid"), "agent_started_at": answer.get("started_at")}


def conversation_evidence(token_before: str, answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the evidence about the conversation: fingerprints of its id, and how many messages were replayed.

    Receipts never contain the id itself, because it is a credential (rule 22).
    """
    token = str(answer.get("resume_token") or "")
    return {
        "fingerprint_before": _fingerprint_of(token_before),
        "fingerprint_after": _fingerprint_of(token),
        "replayed_messages": int(answer.get("replayed", 0)),
    }


def _fingerprint_of(token: str) -> str | None:
    """Return the fingerprint of a token; None if there is no token."""
    if token:
        return fingerprint(token)
    return None


def count_log(session_id: uuid.UUID) -> dict[str, int]:
    """Return how many messages and interrupted tool calls the log has."""
    counts: dict[str, int] = Message.objects.filter(session_id=session_id).aggregate(
        log_messages=Count("id", filter=Q(role__in=("user", "agent"))),
        tool_calls_interrupted=Count("id", filter=Q(role="tool", payload__status="interrupted")),
    )
    return counts


def is_same_directory(transaction: SessionTransaction, directory: str) -> bool | None:
    """Whether the conversation was opened in ``directory``; None if that is unknown."""
    kept = transaction.session.metadata.get(TOKEN_OF)
    if isinstance(kept, dict):
        return kept.get("directory") == directory
    return None


def _current_receipt(transaction: SessionTransaction) -> ContinuityReceipt | None:
    """Return the receipt of the start that brought up the current agent, the only one that its turns can prove."""
    if not transaction.session.launch_id:
        return None
    return transaction.session.receipts.filter(launch_id=transaction.session.launch_id).first()


def _record_verdict(transaction: SessionTransaction, receipt: ContinuityReceipt, verified: Verified) -> None:
    receipt.verified = verified
    receipt.save(update_fields=["verified"])
    transaction.record_event(ReceiptWritten(receipt_id=str(receipt.id), kind=receipt.kind, verified=receipt.verified))

"""What becomes of a receipt after its start: what it carried is told, and its agent's first turn proves it or not."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from django.db.models import Count, Q

from executors_app.plugins import agent_type
from executors_app.prepared import Prepared
from sessions_app.domain import verification
from sessions_app.domain.belonging import TOKEN_OF
from sessions_app.domain.verification import ReceiptKind, Verdict, Verified, fingerprint
from sessions_app.models import ContinuityReceipt, Draft, Message
from sessions_app.models.bulk import update
from sessions_app.services import unfinished
from sessions_app.supervisor.start import memory_checks

_PENDING = Prepared(lambda key: ContinuityReceipt.objects.filter(session_id=key, verified=Verified.PENDING))
_COUNTS = Prepared(
    lambda key: (
        Message.objects.filter(session_id=key)
        .order_by()
        .values("session_id")
        .annotate(
            told=Count("id", filter=Q(role__in=("user", "agent"))),
            cut=Count("id", filter=Q(role="tool", payload__status="interrupted")),
        )
        .values_list("told", "cut")
    )
)


def delivered(draft: Draft, message_id: str) -> None:
    """The agent has a prompt: a history that it carried is injected now, and not before."""
    injected = draft.session.inject_history
    if unfinished.delivered(draft, message_id) and injected:
        receipt = _present(draft)
        if receipt is not None and receipt.kind == ReceiptKind.INJECTED:
            receipt.evidence = {**receipt.evidence, "injected_with": message_id, "injected_at": draft.at.isoformat()}
            update(receipt, ["evidence"])


def tell_again(draft: Draft, message_id: str) -> None:
    """The agent refused this prompt, so it does not keep the history that came with it (ACP on ``refusal``)."""
    receipt = _present(draft)
    if receipt is not None and receipt.evidence.get("injected_with") == message_id:
        draft.set(inject_history=True)


def settle(draft: Draft, *, failed: bool) -> None:
    """The first turn after a resume proves or refutes what was pending (rules, section 9)."""
    receipt = _present(draft)
    if receipt is None or receipt.verified != Verified.PENDING or draft.execution is None:
        return
    token = draft.execution.resume_token
    verified = verification.after_first_turn(
        Verdict(ReceiptKind(receipt.kind), Verified.PENDING),
        str(receipt.evidence.get("fingerprint_after") or ""),
        fingerprint(token) if token else "",
        failed=failed,
        names_conversation=agent_type(draft.session.agent_profile.agent_type).names_conversation,
    )
    _say(draft, receipt, verified)


def answered(draft: Draft, answer: str) -> None:
    """The agent has answered what its last request was."""
    receipt = _present(draft)
    if receipt is not None and receipt.verified in (Verified.UNPROVEN, Verified.PENDING):
        verified = memory_checks.judge(draft, receipt, answer)
        if verified is not None:
            _say(draft, receipt, verified)


def rebuilt(draft: Draft) -> dict[str, str]:
    """The evidence that the launch found the workspace lost, and from what it was made again; empty for none."""
    said = draft.execution.state.get("rebuilt") if draft.execution else ""
    return {"workspace_rebuilt": str(said)} if said else {}


def refuted(draft: Draft, reason: str, message: str) -> None:
    """A turn has shown that the agent is not in the conversation that it was to go on in; once proven stays proven."""
    receipt = _present(draft)
    if receipt is None or receipt.verified not in (Verified.PENDING, Verified.UNPROVEN, Verified.NONE):
        return
    receipt.kind, receipt.reason = ReceiptKind.FAILED, reason
    receipt.evidence = {**receipt.evidence, "message": message}
    update(receipt, ["kind", "reason", "evidence"])
    _say(draft, receipt, Verified.NONE)


def unproven(draft: Draft, but: str = "") -> None:
    """The agent left before any turn of its could prove what was pending: nothing will. ``but``: of this launch."""
    for receipt in _PENDING.all(draft.session.id):
        if receipt.launch_id != but or not but:
            _say(draft, receipt, Verified.NONE)


def process_of(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Which process it is, by the answer to a start or by ``agent`` of a status."""
    return {"agent_pid": answer.get("pid"), "agent_started_at": answer.get("started_at")}


def conversation_of(token_before: str, answer: Mapping[str, Any]) -> dict[str, Any]:
    """Which conversation it is: fingerprints of its id before and after, and how much of it was replayed."""
    token = str(answer.get("resume_token") or "")
    return {
        "fingerprint_before": fingerprint(token_before) if token_before else None,
        "fingerprint_after": fingerprint(token) if token else None,
        "replayed_messages": int(answer.get("replayed", 0)),
    }


def counts_of(session_id: uuid.UUID) -> dict[str, int]:
    """What the log has of its conversation: messages, and tool calls that were interrupted."""
    counts = next(iter(_COUNTS.values(session_id)), [0, 0])
    return dict(zip(("log_messages", "tool_calls_interrupted"), counts, strict=True))


def same_directory(draft: Draft, directory: str) -> bool | None:
    """Whether the conversation was opened where the agent is now; None where nobody knows."""
    kept = draft.session.metadata.get(TOKEN_OF)
    return kept.get("directory") == directory if isinstance(kept, dict) else None


def _present(draft: Draft) -> ContinuityReceipt | None:
    """Of the start that brought up the agent which is here; another's is not for its turns to prove."""
    if not draft.session.launch_id:
        return None
    return draft.session.receipts.filter(launch_id=draft.session.launch_id).first()


def _say(draft: Draft, receipt: ContinuityReceipt, verified: Verified) -> None:
    receipt.verified = verified
    update(receipt, ["verified"])
    draft.say("session.receipt", receipt_id=str(receipt.id), kind=receipt.kind, verified=receipt.verified)

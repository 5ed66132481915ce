"""The turn that asks an agent what it remembers: ordered with the receipt of its start, judged when it has ended."""

from __future__ import annotations

import uuid

from django.db.models import QuerySet, Subquery

from executors_app.prepared import Prepared
from sessions_app.domain import attention, memory_check
from sessions_app.domain.states import RunState
from sessions_app.domain.verification import ReceiptKind, Verdict, Verified
from sessions_app.models import ContinuityReceipt, Draft, Prompt, Run
from sessions_app.models.attention import retell

_CAN_BE_CHECKED = frozenset({Verified.UNPROVEN, Verified.PENDING})
_LAST_TEXT = Prepared(
    lambda key: Prompt.objects.filter(
        session_id=key, message_id=Subquery(completed_turns(key).order_by("-started_at").values("message_id")[:1])
    ).values_list("text")
)


def completed_turns(session_id: uuid.UUID) -> QuerySet[Run]:
    """The turns that were asked for and completed; those that only checked a memory are none of them."""
    done = Run.objects.filter(session_id=session_id, state=RunState.COMPLETED).order_by()
    return done.exclude(message_id__startswith=memory_check.PREFIX)


def last_request(session_id: uuid.UUID) -> str | None:
    """The user's text of the last completed turn; None where none was completed."""
    return next(iter(_LAST_TEXT.texts(session_id)), None)


def order(draft: Draft, launch_id: str, verdict: Verdict, last_request: str | None) -> None:
    """Queue the question before all other prompts, where the profile wants it and nothing else has proven the start."""
    taken_up = verdict.kind in (ReceiptKind.LOADED, ReceiptKind.RESUMED) and verdict.verified in _CAN_BE_CHECKED
    if not (taken_up and last_request and draft.session.agent_profile.memory_check):
        return
    row, made = Prompt.objects.get_or_create(
        session=draft.session,
        message_id=f"{memory_check.PREFIX}{launch_id}",
        defaults={"text": memory_check.PROMPT, "kind": memory_check.KIND},
    )
    if made:
        draft.say("session.prompt.queued", message_id=row.message_id, kind=row.kind, state=row.state)


def judge(draft: Draft, receipt: ContinuityReceipt, answer: str) -> Verified | None:
    """What the answer proves of a start; None: nothing, which is said in the receipt and in the inbox."""
    request = last_request(draft.session.id)
    if request and memory_check.quotes(answer, request):
        return Verified.QUOTED
    receipt.evidence = {**receipt.evidence, "memory_check": memory_check.NOT_QUOTED}
    receipt.save(update_fields=["evidence"])
    notice = attention.unproven(str(receipt.id), memory_check.NOT_QUOTED)
    retell(notice)
    return None

"""Raise and resolve the attention items of a session in the transaction that changes it.

``update_attention`` is a hook of every session transaction (see ``side_effects``), so no code that changes a state can
forget it, and no item is committed without the change that it reports.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from django.utils import timezone

from sessions_app.domain import attention
from sessions_app.domain.agent_programs import NEEDS_PERSON_CODES
from sessions_app.domain.attention import AT_REST_KINDS, AttentionKind, Notice
from sessions_app.domain.situation_facts import AGENT_DIED
from sessions_app.domain.states import TERMINAL_STATES, DesiredState, PromptState, RunState, SessionState, WorkState
from sessions_app.domain.verification import MEMORY_CHECK_PREFIX
from sessions_app.models.attention import AttentionItem, open_item
from sessions_app.models.event import NewEvent
from sessions_app.models.session import CANCEL_IGNORED, INTERRUPTED_WAIT
from sessions_app.models.transactions import SessionTransaction
from sessions_app.workflows.models import WorkflowRun

UNREACHABLE: Final = "unreachable"
"""Error code of an agent that may still run; the sweep checks it again without a person."""
CHOSEN_FRESH_START: Final = "fresh_start"
"""Receipt reason of a fresh start that a user chose."""


ALL_KINDS: Final = frozenset(kind.value for kind in AttentionKind)


def raise_item(transaction: SessionTransaction, notice: Notice, run: WorkflowRun | None = None) -> bool:
    """Raise an attention item in a session transaction; return False if an item with its key is already open.

    If an item with this key was resolved (a prompt is held a second time), it reopens and loses its marks, so that
    every user sees it again. ``run`` is the failed workflow run that the item links to.
    """
    row = open_item(notice, session=transaction.session, task_id=transaction.session.task_id, run=run)
    if row is None:
        return False
    transaction.open_attention = None
    payload = {"item_id": str(row.id), "kind": str(notice.kind), "key": notice.key}
    transaction.record_event("session.attention", **payload, state="raised")
    return True


def resolve_items(
    transaction: SessionTransaction,
    resolution: str,
    kinds: Collection[str] = ALL_KINDS,
    *,
    key: str = "",
    key_begins: str = "",
) -> int:
    """Resolve the session's open items of these kinds, optionally by key or key prefix; return how many there were."""
    if transaction.open_attention is None:
        transaction.open_attention = list(AttentionItem.objects.filter(session=transaction.session, resolved_at=None))
    items = [
        item
        for item in transaction.open_attention
        if item.kind in kinds and key in ("", item.key) and item.key.startswith(key_begins)
    ]
    if not items:
        return 0
    transaction.open_attention = None
    resolved = {"resolved_at": timezone.now(), "resolution": resolution[:64]}
    AttentionItem.objects.filter(id__in=[item.id for item in items]).update(**resolved)
    for item in items:
        payload = {"item_id": str(item.id), "kind": item.kind, "key": item.key}
        transaction.record_event("session.attention", **payload, state="resolved", resolution=resolution)
    return len(items)


def update_attention(transaction: SessionTransaction) -> None:
    """Raise and resolve what the changes of this transaction call for."""
    for event in list(transaction.events):
        if (react := _RULES.get(event.name)) is not None:
            react(transaction, event)
    for key in transaction.settled_prompt_keys:
        resolve_items(transaction, "settled", key=key)
    if transaction.changed_fields & {"state", "error_code", "next_restart_at", "desired_state"}:
        _update_at_rest(transaction)


def _on_permission_requested(transaction: SessionTransaction, event: NewEvent) -> None:
    told = event.payload
    raise_item(transaction, attention.request_notice(told["permission_id"], told["tool_call"], told.get("question")))


def _on_permission_settled(transaction: SessionTransaction, event: NewEvent) -> None:
    state = str(event.payload.get("state") or event.payload.get("reason") or "settled")
    kind = AttentionKind.QUESTION if "status" in event.payload else AttentionKind.PERMISSION
    resolve_items(transaction, state, key=f"{kind}:{event.payload['permission_id']}")


def _on_prompt_held(transaction: SessionTransaction, event: NewEvent) -> None:
    message_id = str(event.payload["message_id"])
    text = transaction.session.prompts.filter(message_id=message_id).values_list("text", flat=True).first() or ""
    raise_item(transaction, attention.held_notice(str(transaction.session.id), message_id, text))


def _on_prompt_overdue(transaction: SessionTransaction, event: NewEvent) -> None:
    said = event.payload
    raise_item(transaction, attention.overdue_notice(str(transaction.session.id), said["message_id"], said["reason"]))


def _on_run_stalled(transaction: SessionTransaction, event: NewEvent) -> None:
    raise_item(transaction, attention.stalled_notice(str(event.payload["run_id"]), str(event.payload["since"])))


def _on_cancel_ignored(transaction: SessionTransaction, event: NewEvent) -> None:
    raise_item(transaction, attention.cancel_ignored_notice(str(event.payload["run_id"]), str(event.payload["since"])))


def _on_turn_ended(transaction: SessionTransaction, event: NewEvent) -> None:
    """Drop the notice that the agent ignored a cancel: its turn has ended."""
    told: Mapping[str, Any] = transaction.session.metadata.get(CANCEL_IGNORED) or {}
    if told and told.get("run_id") == event.payload.get("run_id"):
        kept = {name: value for name, value in transaction.session.metadata.items() if name != CANCEL_IGNORED}
        transaction.set_fields(metadata=kept)
        resolve_items(transaction, "turn_ended", kinds=(AttentionKind.CANCEL_IGNORED,))


def _on_interrupted(transaction: SessionTransaction, event: NewEvent) -> None:
    _on_turn_ended(transaction, event)
    wait: Mapping[str, Any] = transaction.session.metadata.get(INTERRUPTED_WAIT) or {}
    if wait and wait.get("run_id") == event.payload.get("run_id"):
        raise_item(transaction, attention.wait_interrupted_notice(wait["run_id"], str(wait.get("reason") or "")))


def _on_heard_again(transaction: SessionTransaction, event: NewEvent) -> None:
    resolve_items(transaction, "heard_again", kinds=(AttentionKind.STALLED,))


def _on_receipt(transaction: SessionTransaction, event: NewEvent) -> None:
    """Report a fresh start only if it lost a conversation and no user asked for it."""
    said: Mapping[str, Any] = event.payload
    if (
        said.get("kind") == "fresh"
        and said.get("reason") not in (None, CHOSEN_FRESH_START)
        and _had_a_conversation(transaction)
    ):
        raise_item(transaction, attention.receipt_notice(said["receipt_id"]))

    if said.get("kind") not in ("reattached", "workspace_only"):
        _judge_memory(transaction, said)


def _judge_memory(transaction: SessionTransaction, said: Mapping[str, Any]) -> None:
    """Raise or resolve the item about unproven memory; only the newest start counts."""
    is_unproven = said.get("verified") == "unproven" and said.get("kind") in ("resumed", "loaded")
    if is_unproven and _had_a_conversation(transaction):
        raise_item(transaction, attention.unproven_notice(said["receipt_id"]))
    else:
        resolve_items(transaction, "settled", kinds=(AttentionKind.UNPROVEN,))


def _had_a_conversation(transaction: SessionTransaction) -> bool:
    return bool(transaction.session.runs.filter(state=RunState.COMPLETED).exists())


def _on_work_changed(transaction: SessionTransaction, event: NewEvent) -> None:
    """Resolve what asks for a review when the agent works again; ask for one when it becomes idle."""
    if event.payload["to"] == WorkState.WORKING:
        resolve_items(transaction, "working", kinds=AT_REST_KINDS | {AttentionKind.WAIT_INTERRUPTED})
        if (
            any(item.kind == AttentionKind.CUT_SHORT for item in transaction.open_attention or ())
            and _newest_interrupted_prompt(transaction) is None
        ):
            resolve_items(transaction, "working", kinds=(AttentionKind.CUT_SHORT,))
    elif event.payload["from"] == WorkState.WORKING and event.payload["to"] == WorkState.IDLE:
        _needs_review(transaction)


def _newest_interrupted_prompt(transaction: SessionTransaction) -> tuple[str, str] | None:
    """Return message id and text of the newest interrupted prompt that is not settled."""
    rows = transaction.session.prompts.filter(state=PromptState.INTERRUPTED, continued_by=None, resent_as=None)
    return rows.order_by("id").values_list("message_id", "text").last()


def _needs_review(transaction: SessionTransaction) -> None:
    run, session = transaction.newest_run, transaction.session
    if (
        run is None
        or run.message_id.startswith(MEMORY_CHECK_PREFIX)
        or run.state == RunState.CANCELLED
        or session.desired_state == DesiredState.STOPPED
    ):
        return  # a user ended it, so no notice is needed
    if (cut := _newest_interrupted_prompt(transaction)) is not None and session.work_state != WorkState.WORKING:
        raise_item(transaction, attention.cut_short_notice(session.id, *cut))
        return
    if session.state in (SessionState.FAILED, SessionState.ERROR) or session.work_state == WorkState.WORKING:
        return  # has its own item, or works again within this same transaction
    if session.node_runs.filter(run__ended_at=None).exists():
        return  # its workflow continues without a person
    if not session.prompts.filter(state__in=(PromptState.QUEUED, PromptState.SENDING)).exists():
        raise_item(transaction, attention.idle_notice(str(run.id), run.state))


def _update_at_rest(transaction: SessionTransaction) -> None:
    """Raise and resolve the items about the session's own state, once all events are known."""
    session, seq = transaction.session, transaction.session.last_seq
    if session.state in TERMINAL_STATES:
        resolve_items(transaction, str(session.state).lower())
        return
    if session.desired_state == DesiredState.STOPPED:
        resolve_items(transaction, "stopped", kinds=AT_REST_KINDS)
        return
    if "state" in transaction.changed_fields and session.state == SessionState.FAILED:
        error = session.error_message or session.error_code
        died = session.error_code == AGENT_DIED
        told = (str(session.id), session.start_attempts, error, seq, transaction.log_tail)
        raise_item(transaction, attention.gave_up_notice(*told, died=died))
    elif "state" in transaction.changed_fields and session.state not in (SessionState.FAILED, SessionState.ERROR):
        resolve_items(
            transaction, "running_again", kinds=(AttentionKind.GAVE_UP, AttentionKind.ERROR, AttentionKind.OWNER_LEFT)
        )
    elif session.state == SessionState.ERROR:
        _update_error(transaction, seq)


def _update_error(transaction: SessionTransaction, seq: int) -> None:
    session = transaction.session
    by_itself = session.next_restart_at is not None and session.error_code not in NEEDS_PERSON_CODES
    if by_itself or session.error_code == UNREACHABLE:
        resolve_items(transaction, "tried_again", kinds=(AttentionKind.ERROR,))
        return
    if not session.attention.filter(kind=AttentionKind.ERROR, resolved_at=None).exists():
        raise_item(
            transaction,
            attention.error_notice(
                str(session.id), session.error_code, session.error_message, seq, transaction.log_tail
            ),
        )


_RULES: Final[Mapping[str, Callable[[Any, NewEvent], None]]] = {
    "session.permission.requested": _on_permission_requested,
    "session.permission.resolved": _on_permission_settled,
    "session.permission.expired": _on_permission_settled,
    "session.prompt.held": _on_prompt_held,
    "session.prompt.overdue": _on_prompt_overdue,
    "session.run.stalled": _on_run_stalled,
    "session.run.cancel_ignored": _on_cancel_ignored,
    "session.run.completed": _on_turn_ended,
    "session.run.failed": _on_turn_ended,
    "session.run.cancelled": _on_turn_ended,
    "session.run.interrupted": _on_interrupted,
    "session.run.heard_again": _on_heard_again,
    "session.receipt": _on_receipt,
    "session.work_state_changed": _on_work_changed,
}

"""What a draft's changes mean for whoever should know: items are raised and resolved with the change itself.

Called once, before a draft is written, so no writer of states can forget it and nothing is told that is not true.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from sessions_app.domain import attention
from sessions_app.domain.agent_programs import NEEDS_PERSON
from sessions_app.domain.attention import AT_REST_KINDS, AttentionKind
from sessions_app.domain.memory_check import PREFIX
from sessions_app.domain.states import TERMINAL_STATES, DesiredState, PromptState, RunState, SessionState, WorkState
from sessions_app.models.attention import raise_item, resolve
from sessions_app.models.event import NewEvent
from sessions_app.models.session import CANCEL_IGNORED, INTERRUPTED_WAIT

if TYPE_CHECKING:
    from sessions_app.models.draft import Draft

UNREACHABLE: Final = "unreachable"
"""Error code of what may live: it is looked at again by itself."""
ASKED_FOR: Final = "fresh_start"
"""Reason of the receipt of a fresh start that a user chose."""


def notice(draft: Draft) -> None:
    """Raise and resolve what the changes of this draft call for."""
    for event in list(draft.events):
        if (react := _REACTIONS.get(event.name)) is not None:
            react(draft, event)
    for key in draft.settled_prompts:
        resolve(draft, "settled", key=key)
    if draft.changed & {"state", "error_code", "next_restart_at", "desired_state"}:
        _judge_rest(draft)


def _asked(draft: Draft, event: NewEvent) -> None:
    raise_item(draft, attention.permission(event.payload["permission_id"], event.payload["tool_call"]))


def _answered(draft: Draft, event: NewEvent) -> None:
    state = str(event.payload.get("state") or event.payload.get("reason") or "settled")
    resolve(draft, state, key=f"permission:{event.payload['permission_id']}")


def _held(draft: Draft, event: NewEvent) -> None:
    message_id = str(event.payload["message_id"])
    text = draft.session.prompts.filter(message_id=message_id).values_list("text", flat=True).first() or ""
    raise_item(draft, attention.held(str(draft.session.id), message_id, text))


def _overdue(draft: Draft, event: NewEvent) -> None:
    said = event.payload
    raise_item(draft, attention.overdue(str(draft.session.id), said["message_id"], said["reason"]))


def _stalled(draft: Draft, event: NewEvent) -> None:
    raise_item(draft, attention.stalled(str(event.payload["run_id"]), str(event.payload["since"])))


def _cancel_ignored(draft: Draft, event: NewEvent) -> None:
    raise_item(draft, attention.cancel_ignored(str(event.payload["run_id"]), str(event.payload["since"])))


def _turn_ended(draft: Draft, event: NewEvent) -> None:
    """Whether its agent has heeded a cancel is no question any more."""
    told: Mapping[str, Any] = draft.session.metadata.get(CANCEL_IGNORED) or {}
    if told and told.get("run_id") == event.payload.get("run_id"):
        kept = {name: value for name, value in draft.session.metadata.items() if name != CANCEL_IGNORED}
        draft.set(metadata=kept)
        resolve(draft, "turn_ended", kinds=(AttentionKind.CANCEL_IGNORED,))


def _interrupted(draft: Draft, event: NewEvent) -> None:
    _turn_ended(draft, event)
    wait: Mapping[str, Any] = draft.session.metadata.get(INTERRUPTED_WAIT) or {}
    if wait and wait.get("run_id") == event.payload.get("run_id"):
        raise_item(draft, attention.wait_interrupted(wait["run_id"], str(wait.get("reason") or "")))


def _heard(draft: Draft, event: NewEvent) -> None:
    resolve(draft, "heard_again", kinds=(AttentionKind.STALLED,))


def _received(draft: Draft, event: NewEvent) -> None:
    """A fresh start is a loss only where something was said before, and where nobody asked for it."""
    said: Mapping[str, Any] = event.payload
    if said.get("kind") == "fresh" and said.get("reason") not in (None, ASKED_FOR) and _had_a_conversation(draft):
        raise_item(draft, attention.receipt(said["receipt_id"]))

    if said.get("kind") not in ("reattached", "workspace_only"):
        _judge_memory(draft, said)


def _judge_memory(draft: Draft, said: Mapping[str, Any]) -> None:
    """Whether the agent remembers is asked of its newest start alone."""
    is_unproven = said.get("verified") == "unproven" and said.get("kind") in ("resumed", "loaded")
    if is_unproven and _had_a_conversation(draft):
        raise_item(draft, attention.unproven(said["receipt_id"]))
    else:
        resolve(draft, "settled", kinds=(AttentionKind.UNPROVEN,))


def _had_a_conversation(draft: Draft) -> bool:
    return bool(draft.session.runs.filter(state=RunState.COMPLETED).exists())


def _worked(draft: Draft, event: NewEvent) -> None:
    """At work again: nothing waits for a look any more. At rest: it does, unless more is asked already."""
    if event.payload["to"] == WorkState.WORKING:
        resolve(draft, "working", kinds=AT_REST_KINDS | {AttentionKind.WAIT_INTERRUPTED})
        if any(one.kind == AttentionKind.CUT_SHORT for one in draft.open_attention or ()) and _cut_short(draft) is None:
            resolve(draft, "working", kinds=(AttentionKind.CUT_SHORT,))
    elif event.payload["from"] == WorkState.WORKING and event.payload["to"] == WorkState.IDLE:
        _needs_a_look(draft)


def _cut_short(draft: Draft) -> tuple[str, str] | None:
    """Id and text of the newest prompt that was interrupted and not settled, if there is one."""
    rows = draft.session.prompts.filter(state=PromptState.INTERRUPTED, continued_by=None, resent_as=None)
    return rows.order_by("id").values_list("message_id", "text").last()


def _needs_a_look(draft: Draft) -> None:
    run, session = draft.newest_run, draft.session
    if (
        run is None
        or run.message_id.startswith(PREFIX)
        or run.state == RunState.CANCELLED
        or session.desired_state == DesiredState.STOPPED
    ):
        return  # a user ended it, and knows
    if (cut := _cut_short(draft)) is not None and session.work_state != WorkState.WORKING:
        raise_item(draft, attention.cut_short(session.id, *cut))
        return
    if session.state in (SessionState.FAILED, SessionState.ERROR) or session.work_state == WorkState.WORKING:
        return  # told as what it is, or at work again within these very changes
    if session.node_runs.filter(run__ended_at=None).exists():
        return  # its workflow goes on by itself
    if not session.prompts.filter(state__in=(PromptState.QUEUED, PromptState.SENDING)).exists():
        raise_item(draft, attention.idle(str(run.id), run.state))


def _judge_rest(draft: Draft) -> None:
    """What the session's own state asks of somebody, now that all is said."""
    session, seq = draft.session, draft.session.last_seq
    if session.state in TERMINAL_STATES:
        resolve(draft, str(session.state).lower())
        return
    if session.desired_state == DesiredState.STOPPED:
        resolve(draft, "stopped", kinds=AT_REST_KINDS)
        return
    if "state" in draft.changed and session.state == SessionState.FAILED:
        error = session.error_message or session.error_code
        died = session.error_code == attention.AGENT_DIED
        told = (str(session.id), session.start_attempts, error, seq, draft.log_tail)
        raise_item(draft, attention.gave_up(*told, died=died))
    elif "state" in draft.changed and session.state not in (SessionState.FAILED, SessionState.ERROR):
        resolve(draft, "running_again", kinds=(AttentionKind.GAVE_UP, AttentionKind.ERROR, AttentionKind.OWNER_LEFT))
    elif session.state == SessionState.ERROR:
        _judge_error(draft, seq)


def _judge_error(draft: Draft, seq: int) -> None:
    session = draft.session
    by_itself = session.next_restart_at is not None and session.error_code not in NEEDS_PERSON
    if by_itself or session.error_code == UNREACHABLE:
        resolve(draft, "tried_again", kinds=(AttentionKind.ERROR,))
        return
    if not session.attention.filter(kind=AttentionKind.ERROR, resolved_at=None).exists():
        raise_item(
            draft, attention.error(str(session.id), session.error_code, session.error_message, seq, draft.log_tail)
        )


_REACTIONS: Final[Mapping[str, Callable[[Any, NewEvent], None]]] = {
    "session.permission.requested": _asked,
    "session.permission.resolved": _answered,
    "session.permission.expired": _answered,
    "session.prompt.held": _held,
    "session.prompt.overdue": _overdue,
    "session.run.stalled": _stalled,
    "session.run.cancel_ignored": _cancel_ignored,
    "session.run.completed": _turn_ended,
    "session.run.failed": _turn_ended,
    "session.run.cancelled": _turn_ended,
    "session.run.interrupted": _interrupted,
    "session.run.heard_again": _heard,
    "session.receipt": _received,
    "session.work_state_changed": _worked,
}

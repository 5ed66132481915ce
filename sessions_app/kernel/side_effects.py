"""The side effects of every change to a session, in one place and in a fixed order.

All hooks run inside the session's database transaction: either the change commits with everything that follows from
it, or nothing does. When the block of ``session_transaction`` ends, the order is:

1. **derived status**: records ``session.status_derived`` if the changes altered the status.
2. **attention**: reads the recorded events and the final states, and raises and resolves items. Each item records an
   event of its own. Mail and webhooks follow from the committed items; the worker sends them.
3. The session's row and its task's state are written.
4. **audit fields**: cause and owner go into the payloads. Last before the log, so that the events of 1 and 2 get them.
5. The events are appended and get their ``seq``; the **wake-up** of other processes is scheduled for the commit.
6. **audit log**: our own log lines name ``seq``, and are written after the commit, so they never report what was
   rolled back.
7. The steps in ``after_events``, which need ``seq`` too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from django.db.models import Q
from django.db.transaction import on_commit
from django.utils import timezone

from executors_app.models import ExecutorRunning
from executors_app.wire.executions import ExecutorStatus
from sessions_app.attention.raising import update_attention
from sessions_app.kernel import actor_context
from sessions_app.kernel.events.session import StatusDerived
from sessions_app.kernel.models.event import NewEvent
from sessions_app.kernel.models.session import TaskSession
from sessions_app.kernel.rules.states import (
    USER_STOP_REASONS,
    DerivedStatus,
    PermissionState,
    RunFacts,
    RunState,
    derive_status,
)
from sessions_app.kernel.transactions import SessionTransaction, SideEffects
from sessions_app.permissions.models import PermissionRequest
from sessions_app.turns.models import Turn
from sessions_app.waits.models import WaitKey, end_run_of_lost_prompt, revoke_wait_keys_of_run
from sessions_app.waits.rules.wait_keys import WaitKeyState, WaitKind, most_usable_state

log = logging.getLogger(__name__)


def _best_token(run: Turn) -> WaitKeyState | None:
    """Return the most usable state among the keys of what the run still waits for."""
    asked = PermissionRequest.objects.filter(run=run, state=PermissionState.PENDING).values("id")
    waited = Q(wait_id=run.wait_id) & ~Q(wait_kind=WaitKind.PERMISSION) | Q(wait_id__in=asked)
    now = timezone.now()
    return most_usable_state(token.state(now) for token in WaitKey.objects.filter(waited, run=run))


def derived_status(
    session: TaskSession,
    execution: ExecutorRunning | None,
    run: Turn | None,
    best_token: Callable[[Turn], WaitKeyState | None] = _best_token,
) -> DerivedStatus:
    """Derive the status from the newest run; one query if the run waits, else none.

    ``best_token`` returns the most usable state among the keys of what a run waits for.
    """
    if run is None:
        return derive_status(None)
    # An agent that does not answer may still run; only one that is stopped is certainly gone.
    gone = not session.launch_id or execution is None or execution.status == ExecutorStatus.STOPPED
    return derive_status(
        RunFacts(
            state=cast(RunState, run.state),  # a damaged value counts as ended
            waited=run.waited,
            process_gone=run.has_process and gone,
            ended_by_user=run.reason in USER_STOP_REASONS,
            token=best_token(run) if run.state == RunState.WAITING else WaitKeyState.ACTIVE,
        )
    )


def record_status_change(transaction: SessionTransaction) -> None:
    """Record ``session.status_derived`` if the changes of this transaction alter the derived status."""
    if "launch_id" not in transaction.changed_fields and not any(map(_may_change_status, transaction.events)):
        return
    session = transaction.session
    status = derived_status(session, transaction.execution, transaction.newest_run)
    if status != session.told_status:
        transaction.record_event(StatusDerived(from_=session.told_status, status=str(status)))
        transaction.set_fields(told_status=str(status))


def _may_change_status(event: NewEvent) -> bool:
    return event.content is not None and event.content.may_change_status()


def _is_audited(event: NewEvent) -> bool:
    return event.content is not None and event.content.is_audited


_LOGGED_FIELDS: Final = (
    "from",
    "to",
    "kind",
    "state",
    "verified",
    "reason",
    "error_code",
    "message_id",
    "attempt",
    "strategy",
)
"""Payload fields that may appear in our log: our own codes and ids, never the words of an agent or a user."""


def add_audit_fields(transaction: SessionTransaction) -> None:
    """Add cause and owner to the audited events of a supervisor; values that an event already has win."""
    known = actor_context.current_context()
    if actor_context.OWNER not in known:
        return
    for event in transaction.events:
        if _is_audited(event):
            event.payload = {
                name: known.get(name, "") for name in (actor_context.CAUSE, actor_context.OWNER)
            } | event.payload


def write_audit_log(transaction: SessionTransaction) -> None:
    """Write a log line for each audited event, after the commit."""
    known = actor_context.current_context()
    audited = [event for event in transaction.events if _is_audited(event)]
    if not audited or actor_context.OWNER not in known:
        return
    session = transaction.session
    about: dict[str, Any] = {
        **known,
        "session_id": str(session.id),
        "task_id": str(session.task_id),
        "execution_id": str(session.agent_execution_id or ""),
    }
    on_commit(lambda: _write_lines(audited, about))


def _write_lines(events: Sequence[NewEvent], about: dict[str, Any]) -> None:
    for event in events:
        fields = {name: event.payload[name] for name in _LOGGED_FIELDS if event.payload.get(name) not in (None, "")}
        words = ", ".join(f"{name} {value}" for name, value in fields.items())
        known = {**about, actor_context.CAUSE: event.payload.get(actor_context.CAUSE, "")}
        name = event.name.removeprefix("session.")
        arguments = (about["session_id"], name, words and f": {words}", known[actor_context.CAUSE])
        # Prefixed, because ``logging`` reserves some of the names (``name``, ``msg``) for itself.
        extra = {**known, **{f"act_{name}": value for name, value in fields.items()}}
        extra |= {"event": event.name, "seq": event.seq}
        level = event.content.log_level() if event.content is not None else logging.INFO
        log.log(level, "session %s: %s%s (%s)", *arguments, extra=extra)


def _before_write(transaction: SessionTransaction) -> None:
    record_status_change(transaction)
    update_attention(transaction)


SIDE_EFFECTS: Final = SideEffects(
    prompt_moved=end_run_of_lost_prompt,
    run_ended=revoke_wait_keys_of_run,
    before_write=_before_write,
    before_append=add_audit_fields,
    after_append=write_audit_log,
)

"""Suspend a session whose agent has reached a usage limit, and let it go on."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.conf import settings
from django.contrib.auth.models import User
from django.utils import timezone

from executors_app.agents import USAGE_LIMIT
from executors_app.agents.limit_resets import find_reset
from executors_app.plugins import UnknownPlugin, agent_type
from sessions_app.accounts.authorization import may_write_session
from sessions_app.kernel.guarded_jobs import guard_job
from sessions_app.kernel.rules.states import (
    TERMINAL_STATES,
    DesiredState,
    PromptKind,
    PromptState,
    RunState,
)
from sessions_app.kernel.services.errors import Conflict, SessionsError
from sessions_app.models import Prompt, SessionTransaction, Turn, session_transaction
from sessions_app.prompts.services import prepare_for_prompt, require_contents
from sessions_app.suspensions.models import Suspension, begin_suspension, end_suspension, open_suspension
from sessions_app.suspensions.rules.suspension import Continuation, CutOffTurn, SuspensionEnd, continuation
from sessions_app.turns.rules.continuation import Interruption, retry_prompt

BATCH: Final = 100
"""Sessions that one pass lets go on at most; the next pass follows within a second."""
_LIMIT_SENTENCE: Final = "A usage limit of yours was reached, and has ended."


def suspend_after_turn(
    transaction: SessionTransaction, turn: Turn, line: Mapping[str, Any], *, has_worked: bool
) -> None:
    """Suspend the session, because a usage limit has ended ``turn``, as the journal ``line`` reports."""
    session = transaction.session
    if session.desired_state != DesiredState.RUNNING or session.state in TERMINAL_STATES:
        return
    message = str(line.get("message") or "")
    reset = find_reset(message, transaction.at, timezone.get_default_timezone())
    begin_suspension(transaction, turn, reset, reason=USAGE_LIMIT, message=message, has_worked=has_worked)


def settle_suspension(transaction: SessionTransaction) -> None:
    """End the suspension of a session whose agent has completed a turn: the limit no longer holds."""
    row = open_suspension(transaction.session.id)
    if row is not None:
        end_suspension(transaction, row, SuspensionEnd.OBSOLETE, Continuation.NOTHING)


@dataclass(frozen=True, slots=True)
class WentOn:
    """What happened when a session went on."""

    continuation: Continuation
    prompt: Prompt | None


def go_on_now(session_id: uuid.UUID, by: User) -> WentOn:
    """Let a suspended session go on before its limit ends, and continue the turn that it ended.

    Raises Conflict if the session is not suspended, and the errors of ``prepare_for_prompt``.
    """
    with session_transaction(session_id, related=("agent_profile", "task")) as transaction:
        row = open_suspension(session_id)
        if row is None:
            raise Conflict("This session is not suspended.")
        return _go_on(transaction, row, SuspensionEnd.USER, by)


def end_due_suspensions() -> int:
    """Let the sessions go on whose limit has ended; return how many."""
    due = Suspension.objects.filter(ended_at=None, wakes_at__lte=timezone.now()).order_by("wakes_at")
    found = list(due.values_list("id", "session_id")[:BATCH])
    return sum(guard_job(session_id, "its suspension", _end_due, key, session_id) for key, session_id in found)


def next_wake() -> datetime | None:
    """Return when the next session goes on; None if none does by itself."""
    waiting = Suspension.objects.filter(ended_at=None, wakes_at__isnull=False).order_by("wakes_at")
    return waiting.values_list("wakes_at", flat=True).first()


def _end_due(suspension_id: uuid.UUID, session_id: uuid.UUID) -> bool:
    try:
        with session_transaction(session_id, related=("agent_profile", "task")) as transaction:
            row = Suspension.objects.filter(id=suspension_id, ended_at=None).first()
            if row is None:
                return False
            _go_on(transaction, row, SuspensionEnd.RESET)
    except SessionsError:
        # The agent cannot be started, or a file of the prompt is gone: pages say why, and a person decides.
        with session_transaction(session_id) as transaction:
            row = Suspension.objects.filter(id=suspension_id, ended_at=None).first()
            return row is not None and end_suspension(transaction, row, SuspensionEnd.RESET, Continuation.NOTHING)
    return True


def _go_on(transaction: SessionTransaction, row: Suspension, end: SuspensionEnd, by: User | None = None) -> WentOn:
    """End a suspension; continue the turn that the limit has ended as far as the policy says, and wake the agent."""
    session = transaction.session
    if session.task.end or session.state in TERMINAL_STATES or session.desired_state == DesiredState.STOPPED:
        end_suspension(transaction, row, SuspensionEnd.OBSOLETE, Continuation.NOTHING)
        return WentOn(Continuation.NOTHING, None)
    if by is None and session.owner is not None and not may_write_session(session.owner, session):
        # As for automatic starts: nothing runs in the name of somebody who has lost the right to it.
        end_suspension(transaction, row, end, Continuation.NOTHING)
        return WentOn(Continuation.NOTHING, None)
    failed = _refused_prompt(transaction, row)
    turn = CutOffTurn(failed is not None, row.has_worked, _refuses_first(session.agent_profile.agent_type), row.windows)
    kind = continuation(turn, settings.KANDEV_CONTINUE_AT_RESET, by_user=by is not None)
    # Before the agent is prepared: from here on, nothing holds its prompts back.
    end_suspension(transaction, row, end, kind, by)
    prompt = None
    if failed is not None and kind is not Continuation.NOTHING:
        prompt = _give_again(transaction, row, failed, kind, by)
    if prompt is not None or session.prompts.filter(state=PromptState.QUEUED).exists():
        prepare_for_prompt(transaction, by)
    return WentOn(kind, prompt)


def _refused_prompt(transaction: SessionTransaction, row: Suspension) -> Prompt | None:
    """Return the prompt of the turn that the limit has ended; None if it was settled meanwhile, or is unknown."""
    newest = transaction.newest_run
    if newest is None or newest.id != row.run_id or newest.state != RunState.FAILED:
        return None  # somebody has sent something else since
    found = transaction.session.prompts.select_for_update().filter(message_id=newest.message_id, resent_as=None)
    return found.exclude(kind=PromptKind.CHECK).first()


def _refuses_first(name: str) -> bool:
    try:
        return agent_type(name).refuses_first
    except UnknownPlugin:
        return False


def _give_again(
    transaction: SessionTransaction, row: Suspension, failed: Prompt, kind: Continuation, by: User | None
) -> Prompt:
    """Queue the refused prompt again, or a prompt to continue it; named after the suspension, so that it is one."""
    text = failed.text
    if kind is Continuation.CONTINUE:
        text = retry_prompt(Interruption(transaction.session.task.title, failed.text, ()), _LIMIT_SENTENCE)
    else:
        require_contents(failed)
    again = transaction.add_prompt(
        f"limit:{row.id}",
        text,
        kind=PromptKind.RETRY,
        by=by,
        attachments=failed.attachments if kind is Continuation.AGAIN else [],
        trouble=row.reason,
        trouble_message=row.message,
    )
    failed.resent_as = again
    failed.save(update_fields=["resent_as", "updated_at"])
    return again

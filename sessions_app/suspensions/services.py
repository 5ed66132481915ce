"""Suspend a session whose agent has reached a usage limit or whose provider is down, and let it go on."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.contrib.auth.models import User
from django.utils import timezone

from executors_app.agents.limit_resets import find_reset
from executors_app.agents.own_waits import find_own_wait
from executors_app.machine import crash_points
from sessions_app.accounts.authorization import may_write_session
from sessions_app.kernel.guarded_jobs import guard_job
from sessions_app.kernel.rules.states import (
    ENDED_STATES,
    TERMINAL_STATES,
    DesiredState,
    PromptKind,
    PromptState,
)
from sessions_app.kernel.services.errors import AttachmentMissing, Conflict, SessionsError
from sessions_app.models import Prompt, SessionTransaction, TaskSession, Turn, session_transaction
from sessions_app.prompts.models import LIMIT_PREFIX
from sessions_app.prompts.services import prepare_for_prompt, refuse_ended, require_contents
from sessions_app.suspensions.continuations import (
    decide_continuation,
    find_cut_off_turn,
    newest_prompted_turn,
    newest_working_turn,
    refused_prompts,
)
from sessions_app.suspensions.models import (
    Suspension,
    begin_suspension,
    due_suspensions,
    end_suspension,
    open_suspension,
)
from sessions_app.suspensions.rules.suspension import Continuation, SuspensionEnd, is_outage
from sessions_app.turns.models import was_cancelled
from sessions_app.turns.rules.continuation import Interruption, retry_prompt
from sessions_app.turns.rules.transient_errors import TROUBLE_SENTENCES

BATCH: Final = 100
"""Sessions that one pass lets go on at most; the next pass follows within a second."""
_LIMIT_SENTENCE: Final = "A usage limit of yours was reached."


def suspend_after_turn(
    transaction: SessionTransaction, turn: Turn, line: Mapping[str, Any], *, reason: str, has_worked: bool
) -> None:
    """Suspend the session, because of what has ended ``turn``, as the journal ``line`` reports.

    ``reason`` is the code of a limit, or the ``ProviderTrouble`` of an outage.
    """
    session = transaction.session
    if session.desired_state != DesiredState.RUNNING or session.state in TERMINAL_STATES:
        return
    message = str(line.get("message") or "")
    local = timezone.get_default_timezone()
    begin_suspension(
        transaction,
        turn,
        find_reset(message, transaction.at, local),
        reason=reason,
        message=message,
        has_worked=has_worked,
        waits_by_itself=not is_outage(reason) and find_own_wait(message, transaction.at, local) is not None,
    )
    crash_points.reached("suspension.begun", session.id)


@dataclass(frozen=True, slots=True)
class WentOn:
    """What happened when a session went on."""

    continuation: Continuation
    prompt: Prompt | None


def go_on_now(session_id: uuid.UUID, by: User) -> WentOn:
    """Continue the turn that a limit has ended: before the end of the limit, or after it if nothing has continued it.

    What the agent did on its own since does not settle that turn: a person has asked for it. Raises Conflict if there
    is no such turn, TerminalState if the session has ended, AttachmentMissing, and the errors of
    ``prepare_for_prompt``.
    """
    with session_transaction(session_id, related=("agent_profile", "task")) as transaction:
        row = open_suspension(session_id)
        if row is None:
            return _go_on_after_end(transaction, by)
        refuse_ended(transaction.session)
        failed = _refused_prompt(row, newest_prompted_turn(transaction.newest_run))
        return _go_on(transaction, row, SuspensionEnd.USER, failed, by)


def _go_on_after_end(transaction: SessionTransaction, by: User) -> WentOn:
    """Continue the turn of a suspension that has ended without continuing it."""
    row = find_cut_off_turn(transaction.session, transaction.newest_run)
    failed = None
    if row is not None:
        failed = _refused_prompt(row, newest_prompted_turn(transaction.newest_run))
    if row is None or failed is None:
        raise Conflict(
            "This session is not suspended, and its last turn was continued or followed by something else already. "
            "Send a prompt instead."
        )
    refuse_ended(transaction.session)
    kind = _decide(transaction, row, failed, by)
    prompt = _give_again(transaction, row, failed, kind, by)
    prepare_for_prompt(transaction, by)
    return WentOn(kind, prompt)


def end_due_suspensions() -> int:
    """Let the sessions go on whose limit has ended; return how many."""
    # In random order: sessions that cannot go on would otherwise keep all others waiting.
    found = list(due_suspensions().order_by("?").values_list("id", "session_id")[:BATCH])
    return sum(guard_job(session_id, "its suspension", _end_due, key, session_id) for key, session_id in found)


def next_wake() -> datetime | None:
    """Return when the next session goes on; None if none does by itself."""
    waiting = Suspension.objects.filter(ended_at=None, wakes_at__isnull=False).order_by("wakes_at")
    return waiting.values_list("wakes_at", flat=True).first()


def _end_due(suspension_id: uuid.UUID, session_id: uuid.UUID) -> bool:
    try:
        return _end_at_reset(suspension_id, session_id)
    except TaskSession.DoesNotExist:
        # Release 1.0 has deleted the session, and does not know of this row.
        Suspension.objects.filter(id=suspension_id).delete()
        return False
    except SessionsError:
        # The agent cannot be started: pages say why, and a person decides.
        with session_transaction(session_id) as transaction:
            row = Suspension.objects.filter(id=suspension_id, ended_at=None).first()
            return row is not None and end_suspension(transaction, row, SuspensionEnd.RESET, Continuation.NOTHING)


def _end_at_reset(suspension_id: uuid.UUID, session_id: uuid.UUID) -> bool:
    """Let a session go on because its limit has ended; return False if its suspension has ended already."""
    with session_transaction(session_id, related=("agent_profile", "task")) as transaction:
        row = Suspension.objects.filter(id=suspension_id, ended_at=None).first()
        if row is None:
            return False
        session = transaction.session
        if session.task.end or session.state in ENDED_STATES or session.desired_state == DesiredState.STOPPED:
            return end_suspension(transaction, row, SuspensionEnd.OBSOLETE, Continuation.NOTHING)
        if session.owner is not None and not may_write_session(session.owner, session):
            # As for automatic starts: nothing runs in the name of somebody who has lost the right to it.
            return end_suspension(transaction, row, SuspensionEnd.RESET, Continuation.NOTHING)
        failed = _refused_prompt(row, newest_working_turn(transaction.newest_run))
        if failed is not None and _needs_person(row, failed):
            failed = None
        _go_on(transaction, row, SuspensionEnd.RESET, failed)
        crash_points.reached("suspension.continued", session_id)
    crash_points.reached("suspension.committed", session_id)
    return True


def _needs_person(row: Suspension, failed: Prompt) -> bool:
    """Whether only a person can continue the turn: it was cancelled, or a file that its prompt needs is gone."""
    if was_cancelled(row.run):
        return True
    if row.has_worked:
        return False  # the prompt that continues it carries no files
    try:
        require_contents(failed)
    except AttachmentMissing:
        return True
    return False


def _go_on(
    transaction: SessionTransaction,
    row: Suspension,
    end: SuspensionEnd,
    failed: Prompt | None,
    by: User | None = None,
) -> WentOn:
    """End a suspension; continue the turn of ``failed`` as far as the policy says, and wake the agent.

    ``failed`` is the prompt of the turn that the limit has ended; None: nothing can be continued.
    """
    session = transaction.session
    kind = _decide(transaction, row, failed, by)
    # Before the agent is prepared: from here on, nothing holds its prompts back.
    end_suspension(transaction, row, end, kind, by)
    prompt = None
    if failed is not None and kind in (Continuation.AGAIN, Continuation.CONTINUE):
        prompt = _give_again(transaction, row, failed, kind, by)
    if prompt is not None or session.prompts.filter(state=PromptState.QUEUED).exists():
        prepare_for_prompt(transaction, by)
    return WentOn(kind, prompt)


def _decide(transaction: SessionTransaction, row: Suspension, failed: Prompt | None, by: User | None) -> Continuation:
    newest = newest_working_turn(transaction.newest_run)
    return decide_continuation(
        transaction.session.agent_profile.agent_type,
        row,
        has_prompt=failed is not None,
        by_user=by is not None,
        has_worked_since=newest is not None and newest.id != row.run_id,
    )


def _refused_prompt(row: Suspension, newest: Turn | None) -> Prompt | None:
    """Return the prompt of the turn that the limit has ended; None if it was settled meanwhile, or is unknown."""
    return refused_prompts(row, newest).select_for_update().first()


def _give_again(
    transaction: SessionTransaction, row: Suspension, failed: Prompt, kind: Continuation, by: User | None
) -> Prompt:
    """Queue the refused prompt again, or a prompt to continue it; named after the suspension, so that it is one."""
    text, files = failed.text, failed.attachments
    if kind is Continuation.CONTINUE:
        request = Interruption(transaction.session.task.title, _original_request(failed), ())
        text = retry_prompt(request, TROUBLE_SENTENCES.get(row.reason, _LIMIT_SENTENCE))
    if row.has_worked:
        files = []  # it has them
    else:
        require_contents(failed)
    again = transaction.add_prompt(
        f"{LIMIT_PREFIX}{row.id}",
        text,
        kind=PromptKind.RETRY,
        by=by,
        attachments=files,
        # A try during an outage is not retried within seconds: if it fails, the next one has its own time.
        attempt=failed.attempt if is_outage(row.reason) else 0,
        trouble=row.reason,
        trouble_message=row.message,
    )
    failed.resent_as = again
    failed.save(update_fields=["resent_as", "updated_at"])
    return again


def _original_request(failed: Prompt) -> str:
    """Return the user's own text, which the prompts that continued it quote."""
    request = failed
    while request.kind in (PromptKind.RETRY, PromptKind.CONTINUE):
        earlier = request.predecessor
        if earlier is None:
            break
        request = earlier
    return request.text

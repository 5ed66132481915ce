"""Requests to one or many sessions: stored as intents, which the holder of the lease carries out."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.contrib.auth.models import User
from django.db import DatabaseError
from django.db.models import Q
from django.utils import timezone

from sessions_app.accounts.authorization import writable_teams
from sessions_app.background.services import process_count
from sessions_app.kernel.rules.states import (
    OPEN_RUN_STATES,
    TERMINAL_STATES,
    WORK,
    DesiredState,
    PromptKind,
    PromptState,
)
from sessions_app.kernel.services.errors import (
    Conflict,
    Invalid,
    NotFound,
    ReadOnly,
    SessionsError,
    TerminalState,
    refusal_error,
)
from sessions_app.kernel.transactions import create_intent, open_start_intent
from sessions_app.models import Intent, IntentKind, Prompt, SessionTransaction, TaskSession, Turn, session_transaction
from sessions_app.recovery.rules.resumability import MAX_CLOCK_SKEW, Assessment, Mode, assess_mode
from sessions_app.recovery.services.assessment import assess_for_start, execution_of, is_running, refuse_lost_worktree
from sessions_app.sessions.services.queries import visible_sessions
from sessions_app.suspensions.models import settle_suspension, withdraw_continuation
from sessions_app.waits.models import end_external_wait

log = logging.getLogger(__name__)

MODES = tuple(mode.value for mode in Mode)
BULK_LIMIT: Final = 200
"""Maximum number of sessions of one request."""
UNEXPECTED_ERROR: Final = "internal_error"


def due_intents(at: str = "session__next_restart_at") -> Q:
    """Filter the intents whose session may be tried now; ``at`` names the field with the time of its next try.

    A next try that lies further ahead than any back-off reaches was written under a wrong clock, and counts as due.
    """
    now = timezone.now()
    return Q(**{at: None}) | Q(**{f"{at}__lte": now}) | Q(**{f"{at}__gt": now + MAX_CLOCK_SKEW})


def ensure_start_intent(session: TaskSession, by: User | None, mode: str) -> Intent:
    """Return the session's open start intent, creating it if there is none.

    If a user asks for another mode, the intent changes to it, unless a supervisor has already begun the start.
    """
    earlier = open_start_intent(session)
    # A supervisor that has claimed the intent has read its mode already.
    if earlier is None:
        return create_intent(session, IntentKind.START, by, {"mode": mode})
    if by is not None and mode != Mode.AUTO and earlier.claimed_generation is None:
        earlier.by, earlier.payload = by, {"mode": mode}
        earlier.save(update_fields=["by", "payload"])
    return earlier


def request_resume(session_id: uuid.UUID, by: User | None, mode: str = "auto") -> None:
    """Request that a session runs again; raises the error with which the assessment refuses it."""
    if mode not in MODES:
        raise Invalid(f"mode must be one of {', '.join(MODES)}.", field="mode")
    # Before our own transaction: it commits the error that it finds, which our refusal would roll back.
    refuse_lost_worktree(session_id)
    with session_transaction(session_id, related=("agent_profile", "task")) as transaction:
        assessment = assess_for_start(transaction)
        if mode == Mode.AUTO and assessment.is_running:
            return
        require_mode(assessment, mode)
        want_running(transaction, by)
        transaction.set_fields(start_attempts=0, next_restart_at=None)
        ensure_start_intent(transaction.session, by, mode)


def require_mode(assessment: Assessment, mode: str) -> None:
    """Raise the error with which the assessment refuses a start in ``mode``, if it does."""
    verdict = assess_mode(assessment, mode)
    if not verdict.allowed:
        raise refusal_error(assessment, verdict.refusal)


def want_running(transaction: SessionTransaction, by: User | None) -> None:
    """Record that the user wants the session to run."""
    transaction.set_fields(desired_state=DesiredState.RUNNING, stopped_by_user=False, start_rank=None, died_at=None)
    if transaction.session.owner_id is None and by is not None:
        transaction.set_fields(owner_id=by.id)


def request_cancel(session_id: uuid.UUID, by: User | None) -> bool:
    """Request the end of the active turn, or withdraw its retry or its continuation; return False if there is none."""
    with session_transaction(session_id) as transaction:
        run = transaction.open_run
        if run is None:
            return withdraw_retry(transaction) or withdraw_continuation(transaction, by)
        if not run.has_process and _cancel_wait(transaction, run):
            return True
        create_intent(transaction.session, IntentKind.CANCEL, by, {"message_id": run.message_id})
    return True


def waiting_retry(session: TaskSession) -> Prompt | None:
    """Return the pending retry, which waits for its time or for the agent; None if there is none."""
    row: Prompt | None = session.prompts.filter(kind=PromptKind.RETRY, state=PromptState.QUEUED).order_by("id").first()
    return row


def withdraw_retry(transaction: SessionTransaction) -> bool:
    """Withdraw the pending retry; return False if there is none."""
    row = waiting_retry(transaction.session)
    if row is None:
        return False
    transaction.move_prompt(row, "withdraw")
    end_work_after_retry(transaction, row)
    return True


def end_work_after_retry(transaction: SessionTransaction, withdrawn: Prompt) -> None:
    """Set the session to rest if the withdrawn prompt was a retry and no run is open."""
    at_work = transaction.session.runs.filter(state__in=OPEN_RUN_STATES).exists()
    if withdrawn.kind == PromptKind.RETRY and not at_work and WORK.allows(transaction.session.work_state, "rest"):
        transaction.move_work("rest")


def _cancel_wait(transaction: SessionTransaction, run: Turn) -> bool:
    """End an external wait, and its result unless an agent may have it; return False in that case."""
    if end_external_wait(transaction, "cancelled"):
        return True
    row = transaction.session.prompts.filter(message_id=run.message_id, state=PromptState.QUEUED).first()
    if row is not None:
        transaction.move_prompt(row, "withdraw")  # which ends its run, too
    return row is not None


def request_stop(session_id: uuid.UUID, by: User | None) -> None:
    """Request the end of the execution; the session can be resumed later. A start in progress yields to it."""
    with session_transaction(session_id) as transaction:
        _withdraw_start(transaction)
        end_external_wait(transaction, "stopped")
        withdraw_retry(transaction)
        withdraw_continuation(transaction, by)
        transaction.set_fields(desired_state=DesiredState.STOPPED, stopped_by_user=by is not None, start_rank=None)
        if not transaction.session.intents.filter(kind=IntentKind.STOP, done_at=None).exists():
            create_intent(transaction.session, IntentKind.STOP, by)


def request_close(session_id: uuid.UUID, by: User, outcome: str, *, delete_transcript: bool = False) -> None:
    """Request that a session ends for good, as ``completed`` or ``cancelled``; its execution ends too.

    ``delete_transcript``: the user consents that the agent deletes its own transcript, which it does if it is running.
    """
    if outcome not in ("completed", "cancelled"):
        raise Invalid("as must be completed or cancelled.", field="as")
    with session_transaction(session_id) as transaction:
        if transaction.session.state in TERMINAL_STATES:
            raise TerminalState
        earlier = transaction.session.intents.filter(kind=IntentKind.CLOSE, done_at=None).first()
        if earlier is not None and earlier.payload["as"] != outcome:
            raise Conflict(f"The session is being closed as {earlier.payload['as']}.")
        _withdraw_start(transaction)
        end_external_wait(transaction, "closed")
        settle_suspension(transaction)
        transaction.set_fields(desired_state=DesiredState.STOPPED, stopped_by_user=True, start_rank=None)
        if earlier is None:
            payload: dict[str, Any] = {"as": outcome, **({"delete_transcript": True} if delete_transcript else {})}
            create_intent(transaction.session, IntentKind.CLOSE, by, payload)


def _withdraw_start(transaction: SessionTransaction) -> None:
    """Withdraw a start that has not begun; one in progress checks ``desired_state`` at its last write."""
    waiting = transaction.session.intents.filter(kind=IntentKind.START, done_at=None, claimed_generation=None)
    waiting.update(done_at=timezone.now(), outcome="stopped")


BULK_ACTIONS: Final[Mapping[str, Callable[[uuid.UUID, Any], Any]]] = {"resume": request_resume, "stop": request_stop}


@dataclass(frozen=True, slots=True)
class BulkOutcome:
    """The result for one session; an empty ``code`` means that the request was stored."""

    session_id: uuid.UUID
    session: TaskSession | None
    """None: the user can see no such session."""
    code: str = ""
    message: str = ""
    processes: int = 0
    """How many processes of its agent were still running, which a stop ends."""

    @property
    def ok(self) -> bool:
        """Whether the request was stored."""
        return not self.code


def request_many(user: User, action: str, ids: Sequence[uuid.UUID]) -> list[BulkOutcome]:
    """Request one of ``BULK_ACTIONS`` for each session, in the order of ``ids``; a failure stops no other.

    Raises Invalid for an unknown action, and for none or more than ``BULK_LIMIT`` sessions.
    """
    if action not in BULK_ACTIONS:
        raise Invalid(f"action must be one of {', '.join(BULK_ACTIONS)}.", field="action")
    wanted = list(dict.fromkeys(ids))
    if not wanted or len(wanted) > BULK_LIMIT:
        raise Invalid(f"Choose 1 to {BULK_LIMIT} sessions.", field="sessions")
    found = {session.id: session for session in visible_sessions(user).filter(id__in=wanted)}
    writable = set(writable_teams(user).values_list("id", flat=True))
    return [_request_one(user, action, session_id, found.get(session_id), writable) for session_id in wanted]


def _request_one(
    user: User, action: str, session_id: uuid.UUID, row: TaskSession | None, writable: set[int]
) -> BulkOutcome:
    try:
        if row is None:
            raise NotFound
        if row.task.team_id not in writable:
            raise ReadOnly
        BULK_ACTIONS[action](row.id, user)
    except SessionsError as error:
        return BulkOutcome(session_id, row, error.code, error.message)
    except DatabaseError:
        raise  # the next session would meet it too, so the whole request fails
    except Exception:  # one bad row never stops the rest
        log.exception("session %s: the request to %s could not be stored", session_id, action)
        return BulkOutcome(
            session_id, row, UNEXPECTED_ERROR, "Something went wrong for this session. The server log has the details."
        )
    return BulkOutcome(session_id, row, processes=_processes_to_end(row) if action == "stop" else 0)


def _processes_to_end(row: TaskSession) -> int:
    return process_count(row, is_running=is_running(row, execution_of(row)))

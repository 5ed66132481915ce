"""Write how a start or a stop ended: rows, receipt and intent in one transaction.

Also here: what a start reveals about the agent's capabilities, and the explanation of repeated deaths.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from django.conf import settings
from django.utils import timezone

from executors_app.agent_capabilities import (
    CapabilityAssessment,
    CapabilityReport,
    CapabilityScope,
    assess_capabilities,
    build_capability_report,
    load_known_capabilities,
    reset_for_new_version,
    save_assessment,
)
from executors_app.plugins import agent_type
from executors_app.wire.agent_settings import REASON_LIMIT, clean_text
from executors_app.wire.errors import AgentctlUnreachable, ExecutorError, RuntimeUnavailable
from executors_app.wire.protocol import Code
from sessions_app.agents.rules.agent_programs import NEEDS_PERSON_CODES, RECHECK_AFTER
from sessions_app.agents.services import agent_login
from sessions_app.kernel.rules.states import SESSION, DesiredState, PromptState
from sessions_app.kernel.rules.wording import plural
from sessions_app.models import (
    DRAINED_REASON,
    IDLE_REASON,
    Intent,
    Lease,
    SessionTransaction,
    TaskSession,
    session_transaction,
)
from sessions_app.recovery import continuity
from sessions_app.recovery.rules.resumability import UNREACHABLE, Reason
from sessions_app.sessions.rules.situation_texts import REFUSALS
from sessions_app.starts.events import TranscriptClosed
from sessions_app.starts.rules import restart_rules
from sessions_app.turns.interruptions import (
    hold_unsent_prompts,
    interrupt_turn,
    record_agent_stopped,
    withdraw_continuation,
)
from sessions_app.turns.retries import explain_failure
from sessions_app.waits.models import end_external_wait

PROBE_FIELDS: Final = ("supports_session_resume", "capability_note")
"""Columns of the execution that ``learn_capabilities`` sets."""


def learn_capabilities(transaction: SessionTransaction, told: CapabilityReport) -> str:
    """Set ``PROBE_FIELDS`` of the execution by what the agent reported and proved; return the note on its shortfalls.

    The caller saves the execution. The memory for this profile and version is written at the end of the transaction.
    """
    execution = transaction.execution
    if execution is None:
        return ""
    judgement = assess_capabilities(told, load_known_capabilities(told), transaction.at)
    execution.supports_session_resume = judgement.supports_session_resume
    execution.capability_note = judgement.note
    transaction.after_events.append(partial(_remember, transaction, told, judgement))
    return judgement.note


def capability_scope(session: TaskSession) -> CapabilityScope:
    """Return whose sessions an observation of this session's agent is about; a query unless its task is loaded."""
    return CapabilityScope(session.task.team_id, session.agent_profile_id, session.executor_id)


def _remember(transaction: SessionTransaction, told: CapabilityReport, judgement: CapabilityAssessment) -> None:
    """Save the assessment for the profile's other sessions; last, because their starts lock these shared rows."""
    save_assessment(told, judgement)
    if judgement.is_new and judgement.supports_session_resume and transaction.execution is not None:
        reset_for_new_version(told.scope, transaction.execution)


REFUSAL_MESSAGES: Final = {
    "not_resumable": "This agent doesn’t support resuming. Start a new session.",
    "missing_resume_token": REFUSALS[Reason.MISSING_RESUME_TOKEN],
    "context_mismatch": REFUSALS[Reason.CONTEXT_MISMATCH],
    "worktree_missing": "The session’s worktree is gone. Start a new session.",
    "strange_token": (
        "This conversation belongs to another agent profile, agent type or directory. Restore that one, or start fresh."
    ),
}
"""The error of a session whose agent is not started, by code of the refusal."""


CONFIRM_LOSS_AFTER = timedelta(seconds=90)
"""How long after the first report of a lost conversation a second one is believed, for types that report it wrongly."""
REPORTED_GONE = "said_gone_at"
"""Key of ``TaskSession.metadata``: when such an agent first reported its conversation as lost."""
_NO_ANSWER = frozenset({AgentctlUnreachable.code, RuntimeUnavailable.code})
PERMANENT_RETRY_AFTER = timedelta(hours=1)
"""The wait after a failure that will recur until something changes; a user's *try again* does not wait."""


@dataclass(frozen=True, slots=True)
class StartFailure:
    """Why a start brought up no agent, and what follows from it."""

    code: str
    message: str
    permanent: bool = False
    token_valid: bool = True
    executor_failed: bool = False
    """Whether agentctl itself is missing; otherwise the workspace stays open."""
    needs_user: bool = False
    """Whether only a user can continue: the start is not retried automatically."""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    told: Mapping[str, Any] = field(default_factory=dict)
    """What the agent reported about itself before it failed (``StartFailed.told``)."""
    broken: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Capabilities that it claimed and that failed: (shortfall, details), by capability."""
    log_tail: str = ""
    """The end of the agent's log; read only for a failure after which the session is given up."""


def start_failure_from(error: ExecutorError, *, executor_failed: bool) -> StartFailure:
    """Convert an executor's error into a start failure."""
    answer = error.details.get("answer") or {}
    reported = answer.get("told")
    if not isinstance(reported, dict):
        reported = {}
    return StartFailure(
        code=str(getattr(error, "refusal", None) or error.code),
        message=error.message.replace("\0", ""),  # it may quote the agent, and PostgreSQL stores no NUL
        permanent=bool(answer.get("permanent", error.permanent)),
        token_valid=bool(answer.get("token_valid", True)),
        executor_failed=executor_failed,
        told=reported,
    )


def settle_intent(intent_id: uuid.UUID, outcome: str) -> bool:
    """Mark an intent as done with this outcome; return False if it was done already, which keeps its first outcome."""
    open_intents = Intent.objects.filter(id=intent_id, done_at=None)
    return bool(open_intents.update(done_at=timezone.now(), outcome=outcome))


def write_start_failure(
    session_id: uuid.UUID, intent_id: uuid.UUID, lease: Lease | None, failure: StartFailure
) -> None:
    """Write a failed start: receipt, error, and when it is retried; nothing if the intent is settled already.

    The resume token stays, unless the agent itself reports that its conversation is lost. Raises LeaseLost.
    """
    with session_transaction(session_id, lease) as transaction:
        if transaction.session.desired_state != DesiredState.RUNNING:
            return  # a start that loses to a stop is not a failure (rule 9); it stays open until it is undone
        if not settle_intent(intent_id, failure.code):
            return  # the start ended a moment before our time limit
        strategy = Intent.objects.values_list("payload", flat=True).get(id=intent_id).get("strategy", "")
        failure = replace(failure, message=explain_failure(transaction.session, failure.code, failure.message))
        code = _keep_unreachable(transaction, failure)
        if failure.executor_failed:
            transaction.move_executor("fail", error_code=code, error_message=failure.message)
        note = _learn_from_failure(transaction, failure)
        transaction.write_receipt(
            "failed",
            "none",
            launch_id=str(intent_id),
            strategy=strategy,
            reason=failure.code,
            evidence={
                **failure.evidence,
                **continuity.rebuild_evidence(transaction),
                "message": failure.message,
                "capability_note": note,
            },
        )
        transaction.set_fields(launch_id="")
        agent_login.settle_login(transaction, intent_id, failure.told, failure.message)
        if failure.code == Code.RESUME_UNSUPPORTED:
            _set_token_aside(transaction, failure)
        elif failure.token_valid:
            _schedule_retry(transaction, replace(failure, code=code))
        elif _is_token_loss_believed(transaction):
            _set_token_aside(transaction, failure)
        else:
            transaction.set_fields(next_restart_at=transaction.at + CONFIRM_LOSS_AFTER)
            transaction.move_session(
                "fail", error_code=failure.code, error_message=f"{failure.message} Trying once more."
            )


def _keep_unreachable(transaction: SessionTransaction, failure: StartFailure) -> str:
    """Return the error code to store: a place that was unreachable before the start and still is keeps that code."""
    silent = transaction.session.error_code == UNREACHABLE and failure.code in _NO_ANSWER
    if silent:
        return UNREACHABLE
    return failure.code


def _learn_from_failure(transaction: SessionTransaction, failure: StartFailure) -> str:
    """Learn capabilities from what the agent reported before it failed; return the note, empty without a report."""
    execution = transaction.execution
    if execution is None or not failure.told:
        return ""
    kind, token = (
        transaction.session.agent_profile.agent_type,
        execution.resume_token or execution.rejected_resume_token,
    )
    note = learn_capabilities(
        transaction,
        build_capability_report(
            capability_scope(transaction.session), kind, failure.told, broken=failure.broken, secret=token
        ),
    )
    execution.save(update_fields=[*PROBE_FIELDS, "updated_at"])
    agent_login.remember_agent(transaction, failure.told)
    return note


def _is_token_loss_believed(transaction: SessionTransaction) -> bool:
    """Whether the agent's report that its conversation is lost counts.

    It counts at once, unless its type is known to report this wrongly: then only a second report counts, at least
    ``CONFIRM_LOSS_AFTER`` after the first, whose time is stored here.
    """
    if not agent_type(transaction.session.agent_profile.agent_type).errs_about_gone:
        return True
    reported_at = transaction.session.metadata.get(REPORTED_GONE)
    if reported_at is None:
        transaction.set_fields(metadata={**transaction.session.metadata, REPORTED_GONE: transaction.at.isoformat()})
        return False
    return transaction.at - datetime.fromisoformat(reported_at) >= CONFIRM_LOSS_AFTER


def _set_token_aside(transaction: SessionTransaction, failure: StartFailure) -> None:
    """Set the resume token aside and let a user decide, because the agent cannot resume the conversation.

    Either the conversation is lost, or this agent has no way to resume one.
    """
    continuity.set_token_aside(transaction, is_lost=failure.code == Code.TOKEN_REJECTED)
    transaction.set_fields(next_restart_at=None)
    transaction.move_session("ready", error_code=failure.code, error_message=failure.message, reason=failure.code)


def record_lost_conversation(transaction: SessionTransaction, code: str, message: str) -> None:
    """Handle a failed turn that shows that its agent is not in this conversation, like a start that fails so.

    agentctl ends the agent on its own.
    """
    if code == Code.CONTEXT_MISMATCH and SESSION.allows(transaction.session.state, "fail"):
        continuity.refute_receipt(transaction, code, message)
        transaction.set_fields(context_mismatch=True, next_restart_at=None)
        hold_unsent_prompts(transaction)
        withdraw_continuation(transaction)
        transaction.move_session("fail", error_code=code, error_message=message)
    elif code == Code.TOKEN_REJECTED and SESSION.allows(transaction.session.state, "ready"):
        continuity.refute_receipt(transaction, code, message)
        if _is_token_loss_believed(transaction):
            _set_token_aside(transaction, StartFailure(code, message))
        else:
            transaction.set_fields(next_restart_at=transaction.at + CONFIRM_LOSS_AFTER)


def is_last_start_attempt(session_id: uuid.UUID) -> bool:
    """Whether no further start is made automatically if this one fails."""
    attempts = TaskSession.objects.values_list("start_attempts", flat=True).get(id=session_id)
    return attempts >= settings.KANDEV_MAX_RESTARTS


def _schedule_retry(transaction: SessionTransaction, failure: StartFailure) -> None:
    """Set the session's error and the time of its next start, or give it up after too many attempts (rule 33)."""
    attempts = transaction.session.start_attempts
    message = failure.message
    if not failure.permanent and failure.code not in NEEDS_PERSON_CODES and attempts >= settings.KANDEV_MAX_RESTARTS:
        message = f"Given up after {plural(attempts, '1 start', '{} starts')}. The last one: {message}"
        transaction.log_tail = failure.log_tail
        transaction.set_fields(next_restart_at=None)
        hold_unsent_prompts(transaction)
        transaction.move_session("give_up", error_code=failure.code, error_message=message)
        return
    first = timedelta(seconds=settings.KANDEV_RESTART_DELAY)
    jitter = random.random()  # noqa: S311  (no secret)
    if failure.permanent:
        wait = PERMANENT_RETRY_AFTER
    else:
        wait = restart_rules.restart_delay(attempts, jitter, first)
    if failure.code in NEEDS_PERSON_CODES:
        wait = RECHECK_AFTER
        transaction.set_fields(start_attempts=0)  # the starts themselves were sound: they must not add up to giving up
    if failure.needs_user:
        transaction.set_fields(next_restart_at=None)
    else:
        transaction.set_fields(next_restart_at=transaction.at + wait)
    if failure.needs_user:
        hold_unsent_prompts(transaction)
        withdraw_continuation(transaction)
    if SESSION.allows(
        transaction.session.state, "fail"
    ):  # a session that was given up stays so when only its workspace was requested
        transaction.move_session("fail", error_code=failure.code, error_message=message)


def write_stopped(
    session_id: uuid.UUID,
    lease: Lease | None,
    reason: str,
    close_as: str = "",
    transcript: Mapping[str, Any] | None = None,
) -> None:
    """Write that the execution has ended on request: interrupt its turn, and leave the session resumable.

    ``close_as`` (*completed* or *cancelled*) ends the session for good. ``transcript`` is the result for the agent's
    own, ``{"deleted", "confirmed", "reason"}``; None if no deletion was requested. Raises LeaseLost.
    """
    with session_transaction(session_id, lease) as transaction:
        if reason in (IDLE_REASON, DRAINED_REASON) and transaction.session.desired_state != DesiredState.RUNNING:
            reason = "stopped"  # a user stopped it while it fell asleep, or its host drained
        interrupt_turn(transaction, reason)
        record_agent_stopped(transaction)
        transaction.set_fields(next_restart_at=None)
        transaction.move_executor("stop", pid=None, status_reason=reason)
        if transcript is not None:
            deleted, confirmed = bool(transcript.get("deleted")), transcript.get("confirmed") is True
            why = clean_text(transcript.get("reason"), REASON_LIMIT)
            transaction.record_event(TranscriptClosed(deleted=deleted, confirmed=confirmed, reason=why))
        if close_as:
            end_external_wait(transaction, reason)
            _settle_open_prompts(transaction)
            transaction.move_work("finish")
            transaction.move_session({"completed": "complete", "cancelled": "cancel"}[close_as])
        elif SESSION.allows(transaction.session.state, "stop"):
            transaction.move_session("stop", reason=reason)
        if transaction.session.task.is_over:
            transaction.move_work("finish")


def _settle_open_prompts(transaction: SessionTransaction) -> None:
    """Withdraw queued prompts and hold those being sent, because a session that has ended for good sends no more."""
    for row in transaction.session.prompts.filter(state__in=[PromptState.QUEUED, PromptState.SENDING]).order_by("id"):
        if row.state == PromptState.QUEUED:
            transaction.move_prompt(row, "withdraw")
        else:
            transaction.move_prompt(row, "hold")

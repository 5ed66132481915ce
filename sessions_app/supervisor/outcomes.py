"""How a start or a stop ended, written to rows, receipt and intent in one transaction.

What it teaches about the agent; why agents died.
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
    assess_capabilities,
    build_capability_report,
    load_known_capabilities,
    reset_for_new_version,
    save_assessment,
)
from executors_app.agentctl.protocol import Code
from executors_app.errors import AgentctlUnreachable, ExecutorError, RuntimeUnavailable
from executors_app.plugins import agent_type
from sessions_app.domain import restart_rules, verification
from sessions_app.domain.agent_programs import NEEDS_PERSON_CODES, RECHECK_AFTER
from sessions_app.domain.attention import excerpt
from sessions_app.domain.recovery_facts import UNREACHABLE
from sessions_app.domain.states import SESSION, DesiredState, PromptState, RunState
from sessions_app.models import IDLE_REASON, Intent, Lease, SessionTransaction, TaskSession, session_transaction, waits
from sessions_app.models.bulk import update_rows
from sessions_app.services.turn_retries import explain_failure
from sessions_app.supervisor import continuity
from sessions_app.supervisor.interrupted_turns import (
    hold_unsent_prompts,
    interrupt_turn,
    record_agent_stopped,
    withdraw_continuation,
)

PROBE_FIELDS: Final = ("supports_session_resume", "capability_note")
"""What ``take_in`` sets in the execution's row."""


def learn_capabilities(transaction: SessionTransaction, told: CapabilityReport) -> str:
    """Set the row to what the agent is to be believed, and remember it at the end; returns the note.

    The row is not saved. One query, and an upsert of the memory where it has changed.
    """
    execution = transaction.execution
    if execution is None:
        return ""
    judgement = assess_capabilities(told, load_known_capabilities(told), transaction.at)
    execution.supports_session_resume = judgement.supports_session_resume
    execution.capability_note = judgement.note
    transaction.after_events.append(partial(_remember, transaction, told, judgement))
    return judgement.note


def _remember(transaction: SessionTransaction, told: CapabilityReport, judgement: CapabilityAssessment) -> None:
    """The memory's rows are shared by all: locked last, and shortest."""
    save_assessment(told, judgement)
    if judgement.is_new and judgement.supports_session_resume and transaction.execution is not None:
        reset_for_new_version(transaction.session.agent_profile, transaction.execution)


LAST_OUTPUT: Final = 3
"""Of the agent's log, in the sentence; the item in the inbox has more."""


def explain_agent_deaths(transaction: SessionTransaction) -> str:
    """One paragraph about the deaths since the last completed turn; empty where the starts failed otherwise."""
    most = transaction.session.start_attempts + 1
    exits = _exits_since_success(transaction)[-most:]
    in_turn = _count_interrupted_turns(transaction)
    deaths = len(exits) or min(in_turn, most)
    if deaths < 2:  # most of these starts have failed otherwise
        return ""
    where = " in its turn" if in_turn >= deaths else ""
    how = f" ({', '.join(map(_describe_exit, exits))})" if exits else ""
    told = [line.strip() for line in transaction.log_tail.splitlines() if line.strip()][-LAST_OUTPUT:]
    words = f" Its last words: {excerpt(' / '.join(told))}" if told else ""
    return f"The agent died{where} {deaths} times in a row{how}.{words} It is not restarted again by itself."


def _exits_since_success(transaction: SessionTransaction) -> list[Any]:
    """Exit codes of agents that ended unasked, the oldest first."""
    log = transaction.session.events
    completed = log.filter(name="session.run.completed").exclude(
        payload__message_id__startswith=verification.MEMORY_CHECK_PREFIX
    )
    success = completed.order_by("-seq").values_list("seq", flat=True).first() or 0
    died = log.filter(name="session.agent_exited", seq__gt=success, payload__expected=False).order_by("seq")
    return [payload.get("exit_code") for payload in died.values_list("payload", flat=True)]


def _count_interrupted_turns(transaction: SessionTransaction) -> int:
    runs = transaction.session.runs.order_by("started_at")
    success = (
        runs.filter(state=RunState.COMPLETED).exclude(message_id__startswith=verification.MEMORY_CHECK_PREFIX).last()
    )
    later = runs.filter(started_at__gt=success.started_at) if success else runs
    return int(later.filter(state=RunState.INTERRUPTED).count())


def _describe_exit(exit_code: Any) -> str:
    if not isinstance(exit_code, int):
        return "exit code unknown"
    return f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"


CONFIRM_LOSS_AFTER = timedelta(seconds=90)
"""Between two *gone* of an agent whose type is known to err about it (rules, section 8)."""
REPORTED_GONE = "said_gone_at"
"""Key of ``TaskSession.metadata``: when such an agent said it first."""
_NO_ANSWER = frozenset({AgentctlUnreachable.code, RuntimeUnavailable.code})
PERMANENT_RETRY_AFTER = timedelta(hours=1)
"""Before the loop tries again what cannot succeed as things stand; a user's *try again* does not wait."""


@dataclass(frozen=True, slots=True)
class StartFailure:
    """Why a start did not come to an agent."""

    code: str
    message: str
    permanent: bool = False
    token_valid: bool = True
    executor_failed: bool = False
    """agentctl itself is not there; otherwise the workspace stays open."""
    needs_user: bool = False
    """Nobody else can go on: not tried again by itself."""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    told: Mapping[str, Any] = field(default_factory=dict)
    """What the agent told of itself before it failed (``StartFailed.told``)."""
    broken: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """What we saw it not keep: (Shortfall, how), by capability."""
    log_tail: str = ""
    """The end of the agent's log, where somebody will want it."""


def start_failure_from(error: ExecutorError, *, executor_failed: bool) -> StartFailure:
    """The failure that an error of the executors' side stands for."""
    answer = error.details.get("answer") or {}
    told = answer.get("told")
    return StartFailure(
        code=str(getattr(error, "refusal", None) or error.code),
        message=error.message.replace("\0", ""),  # an agent's own words may be in it
        permanent=bool(answer.get("permanent", error.permanent)),
        token_valid=bool(answer.get("token_valid", True)),
        executor_failed=executor_failed,
        told=told if isinstance(told, dict) else {},
    )


def settle_intent(intent_id: uuid.UUID, outcome: str) -> bool:
    """An order is carried out, or has become pointless; False where that is known already."""
    return bool(update_rows(Intent, ("done_at", "outcome"), [(timezone.now(), outcome, intent_id)], unset="done_at"))


def write_start_failure(
    session_id: uuid.UUID, intent_id: uuid.UUID, lease: Lease | None, failure: StartFailure
) -> None:
    """A start failed: say it, keep the token unless the agent itself said that it is gone, back off (rule 33)."""
    with session_transaction(session_id, lease) as transaction:
        if transaction.session.desired_state != DesiredState.RUNNING:
            settle_intent(intent_id, "stopped")  # somebody stopped it meanwhile: that start has lost, and is no failure
            return
        if not settle_intent(intent_id, failure.code):
            return  # our own time limit came a moment after its end
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
        if failure.code == Code.RESUME_UNSUPPORTED:
            _set_token_aside(transaction, failure)
        elif failure.token_valid:
            _schedule_retry(transaction, replace(failure, code=code))
        elif _is_token_loss_believed(transaction):
            _set_token_aside(transaction, failure)
        else:
            transaction.set_fields(next_restart_at=transaction.at + CONFIRM_LOSS_AFTER)
            transaction.move_session(
                "fail", error_code=failure.code, error_message=f"{failure.message} Asking once more."
            )


def _keep_unreachable(transaction: SessionTransaction, failure: StartFailure) -> str:
    """The code that session and execution get: a place that was silent before the start is as silent after it."""
    silent = transaction.session.error_code == UNREACHABLE and failure.code in _NO_ANSWER
    return UNREACHABLE if silent else failure.code


def _learn_from_failure(transaction: SessionTransaction, failure: StartFailure) -> str:
    """What the agent told before it failed; a start without a word of it teaches nothing. Returns the note."""
    execution = transaction.execution
    if execution is None or not failure.told:
        return ""
    kind, token = (
        transaction.session.agent_profile.agent_type,
        execution.resume_token or execution.rejected_resume_token,
    )
    note = learn_capabilities(
        transaction, build_capability_report(kind, failure.told, broken=failure.broken, secret=token)
    )
    execution.save(update_fields=[*PROBE_FIELDS, "updated_at"])
    return note


def _is_token_loss_believed(transaction: SessionTransaction) -> bool:
    """Whether the agent's *gone* counts: at once, or the second time where its type is known to err."""
    if not agent_type(transaction.session.agent_profile.agent_type).errs_about_gone:
        return True
    said = transaction.session.metadata.get(REPORTED_GONE)
    if said is None:
        transaction.set_fields(metadata={**transaction.session.metadata, REPORTED_GONE: transaction.at.isoformat()})
        return False
    return transaction.at - datetime.fromisoformat(said) >= CONFIRM_LOSS_AFTER


def _set_token_aside(transaction: SessionTransaction, failure: StartFailure) -> None:
    """The agent says that it cannot take the conversation up: the token is kept apart, and a user decides.

    Either the conversation is gone, or the agent has nothing to take one up with (rules, section 8, rows 9 and 10).
    """
    continuity.set_token_aside(transaction)
    transaction.set_fields(next_restart_at=None)
    transaction.move_session("ready", error_code=failure.code, error_message=failure.message, reason=failure.code)


def record_lost_conversation(transaction: SessionTransaction, code: str, message: str) -> None:
    """A turn has shown that its agent is not in this conversation, and agentctl stops it: as after such a start."""
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
    """Whether a start that fails now is the last one that is made by itself."""
    attempts = TaskSession.objects.values_list("start_attempts", flat=True).get(id=session_id)
    return restart_rules.is_exhausted(attempts, settings.KANDEV_MAX_RESTARTS)


def _schedule_retry(transaction: SessionTransaction, failure: StartFailure) -> None:
    attempts = transaction.session.start_attempts
    message = failure.message
    if (
        not failure.permanent
        and failure.code not in NEEDS_PERSON_CODES
        and restart_rules.is_exhausted(attempts, settings.KANDEV_MAX_RESTARTS)
    ):
        message = f"Given up after {attempts} starts. The last one: {message}"
        transaction.log_tail = failure.log_tail
        transaction.set_fields(next_restart_at=None)
        hold_unsent_prompts(transaction)
        transaction.move_session("give_up", error_code=failure.code, error_message=message)
        return
    first = timedelta(seconds=settings.KANDEV_RESTART_DELAY)
    jitter = random.random()  # noqa: S311  (no secret)
    wait = PERMANENT_RETRY_AFTER if failure.permanent else restart_rules.restart_delay(attempts, jitter, first)
    if failure.code in NEEDS_PERSON_CODES:
        wait = RECHECK_AFTER
        transaction.set_fields(
            start_attempts=0
        )  # nothing was wrong with these starts: they must not add up to giving up
    transaction.set_fields(next_restart_at=None if failure.needs_user else transaction.at + wait)
    if failure.needs_user:
        hold_unsent_prompts(transaction)
        withdraw_continuation(transaction)
    if SESSION.allows(
        transaction.session.state, "fail"
    ):  # one that was given up, and whose workspace was asked for, stays
        transaction.move_session("fail", error_code=failure.code, error_message=message)


def write_stopped(session_id: uuid.UUID, lease: Lease | None, reason: str, close_as: str = "") -> None:
    """The execution has ended as it was asked to: nothing of it is left unfinished, the session can be resumed."""
    with session_transaction(session_id, lease) as transaction:
        if reason == IDLE_REASON and transaction.session.desired_state != DesiredState.RUNNING:
            reason = "stopped"  # by somebody who came while it fell asleep
        interrupt_turn(transaction, reason)
        record_agent_stopped(transaction)
        transaction.set_fields(next_restart_at=None)
        transaction.move_executor("stop", pid=None, status_reason=reason)
        if close_as:
            waits.end_external_wait(transaction, reason)
            _settle_open_prompts(transaction)
            transaction.move_work("finish")
            transaction.move_session({"completed": "complete", "cancelled": "cancel"}[close_as])
        elif SESSION.allows(transaction.session.state, "stop"):
            transaction.move_session("stop", reason=reason)
        if transaction.session.task.is_over:
            transaction.move_work("finish")


def _settle_open_prompts(transaction: SessionTransaction) -> None:
    """A session that has ended for good sends nothing more: what waited is taken back, what was on its way is held."""
    for row in transaction.session.prompts.filter(state__in=[PromptState.QUEUED, PromptState.SENDING]).order_by("id"):
        transaction.move_prompt(row, "withdraw" if row.state == PromptState.QUEUED else "hold")

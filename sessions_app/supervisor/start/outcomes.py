"""How a start or a stop ended, written down: rows, receipt and intent in one transaction."""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.utils import timezone

from executors_app.agentctl.protocol import Code
from executors_app.capability_memory import told_of
from executors_app.errors import AgentctlUnreachable, ExecutorError, RuntimeUnavailable
from executors_app.plugins import agent_type
from sessions_app.domain import backoff
from sessions_app.domain.agent_programs import NEEDS_PERSON, NEXT_TRY
from sessions_app.domain.recovery_facts import UNREACHABLE
from sessions_app.domain.states import SESSION, DesiredState, PromptState
from sessions_app.models import IDLE, Draft, Intent, Lease, TaskSession, waits, writing
from sessions_app.models.bulk import update_rows
from sessions_app.services.agent_programs import explained
from sessions_app.supervisor.ingest.interruptions import agent_left, hold_unsent, interrupt, withdraw_continuation
from sessions_app.supervisor.start import receipts, token_keeping
from sessions_app.supervisor.start.capabilities import PROBE_FIELDS, take_in

ASK_AGAIN = timedelta(seconds=90)
"""Between two *gone* of an agent whose type is known to err about it (rules, section 8)."""
SAID_GONE = "said_gone_at"
"""Key of ``TaskSession.metadata``: when such an agent said it first."""
_NO_ANSWER = frozenset({AgentctlUnreachable.code, RuntimeUnavailable.code})
PERMANENT_WAIT = timedelta(hours=1)
"""Before the loop tries again what cannot succeed as things stand; a user's *try again* does not wait."""


@dataclass(frozen=True, slots=True)
class Failure:
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


def failure_of(error: ExecutorError, *, executor_failed: bool) -> Failure:
    """The failure that an error of the executors' side stands for."""
    answer = error.details.get("answer") or {}
    told = answer.get("told")
    return Failure(
        code=str(getattr(error, "refusal", None) or error.code),
        message=error.message.replace("\0", ""),  # an agent's own words may be in it
        permanent=bool(answer.get("permanent", error.permanent)),
        token_valid=bool(answer.get("token_valid", True)),
        executor_failed=executor_failed,
        told=told if isinstance(told, dict) else {},
    )


def settle(intent_id: uuid.UUID, outcome: str) -> bool:
    """An order is carried out, or has become pointless; False where that is known already."""
    return bool(update_rows(Intent, ("done_at", "outcome"), [(timezone.now(), outcome, intent_id)], unset="done_at"))


def write_failure(session_id: uuid.UUID, intent_id: uuid.UUID, lease: Lease | None, failure: Failure) -> None:
    """A start failed: say it, keep the token unless the agent itself said that it is gone, back off (rule 33)."""
    with writing(session_id, lease) as draft:
        if draft.session.desired_state != DesiredState.RUNNING:
            settle(intent_id, "stopped")  # somebody stopped it meanwhile: that start has lost, and is no failure
            return
        if not settle(intent_id, failure.code):
            return  # our own time limit came a moment after its end
        strategy = Intent.objects.values_list("payload", flat=True).get(id=intent_id).get("strategy", "")
        failure = replace(failure, message=explained(draft.session, failure.code, failure.message))
        code = _as_known(draft, failure)
        if failure.executor_failed:
            draft.move_executor("fail", error_code=code, error_message=failure.message)
        note = _take_in(draft, failure)
        draft.receipt(
            "failed",
            "none",
            launch_id=str(intent_id),
            strategy=strategy,
            reason=failure.code,
            evidence={
                **failure.evidence,
                **receipts.rebuilt(draft),
                "message": failure.message,
                "capability_note": note,
            },
        )
        draft.set(launch_id="")
        if failure.code == Code.RESUME_UNSUPPORTED:
            _set_token_aside(draft, failure)
        elif failure.token_valid:
            _back_off(draft, replace(failure, code=code))
        elif _is_believed(draft):
            _set_token_aside(draft, failure)
        else:
            draft.set(next_restart_at=draft.at + ASK_AGAIN)
            draft.move("fail", error_code=failure.code, error_message=f"{failure.message} Asking once more.")


def _as_known(draft: Draft, failure: Failure) -> str:
    """The code that session and execution get: a place that was silent before the start is as silent after it."""
    silent = draft.session.error_code == UNREACHABLE and failure.code in _NO_ANSWER
    return UNREACHABLE if silent else failure.code


def _take_in(draft: Draft, failure: Failure) -> str:
    """What the agent told before it failed; a start without a word of it teaches nothing. Returns the note."""
    execution = draft.execution
    if execution is None or not failure.told:
        return ""
    kind, token = draft.session.agent_profile.agent_type, execution.resume_token or execution.rejected_resume_token
    note = take_in(draft, told_of(kind, failure.told, broken=failure.broken, secret=token))
    execution.save(update_fields=[*PROBE_FIELDS, "updated_at"])
    return note


def _is_believed(draft: Draft) -> bool:
    """Whether the agent's *gone* counts: at once, or the second time where its type is known to err."""
    if not agent_type(draft.session.agent_profile.agent_type).errs_about_gone:
        return True
    said = draft.session.metadata.get(SAID_GONE)
    if said is None:
        draft.set(metadata={**draft.session.metadata, SAID_GONE: draft.at.isoformat()})
        return False
    return draft.at - datetime.fromisoformat(said) >= ASK_AGAIN


def _set_token_aside(draft: Draft, failure: Failure) -> None:
    """The agent says that it cannot take the conversation up: the token is kept apart, and a user decides.

    Either the conversation is gone, or the agent has nothing to take one up with (rules, section 8, rows 9 and 10).
    """
    token_keeping.set_aside(draft)
    draft.set(next_restart_at=None)
    draft.move("ready", error_code=failure.code, error_message=failure.message, reason=failure.code)


def lose_conversation(draft: Draft, code: str, message: str) -> None:
    """A turn has shown that its agent is not in this conversation, and agentctl stops it: as after such a start."""
    if code == Code.CONTEXT_MISMATCH and SESSION.allows(draft.session.state, "fail"):
        receipts.refuted(draft, code, message)
        draft.set(context_mismatch=True, next_restart_at=None)
        hold_unsent(draft)
        withdraw_continuation(draft)
        draft.move("fail", error_code=code, error_message=message)
    elif code == Code.TOKEN_REJECTED and SESSION.allows(draft.session.state, "ready"):
        receipts.refuted(draft, code, message)
        if _is_believed(draft):
            _set_token_aside(draft, Failure(code, message))
        else:
            draft.set(next_restart_at=draft.at + ASK_AGAIN)


def is_last_try(session_id: uuid.UUID) -> bool:
    """Whether a start that fails now is the last one that is made by itself."""
    attempts = TaskSession.objects.values_list("start_attempts", flat=True).get(id=session_id)
    return backoff.gave_up(attempts, settings.KANDEV_MAX_RESTARTS)


def _back_off(draft: Draft, failure: Failure) -> None:
    attempts = draft.session.start_attempts
    message = failure.message
    if (
        not failure.permanent
        and failure.code not in NEEDS_PERSON
        and backoff.gave_up(attempts, settings.KANDEV_MAX_RESTARTS)
    ):
        message = f"Given up after {attempts} starts. The last one: {message}"
        draft.log_tail = failure.log_tail
        draft.set(next_restart_at=None)
        hold_unsent(draft)
        draft.move("give_up", error_code=failure.code, error_message=message)
        return
    first = timedelta(seconds=settings.KANDEV_RESTART_DELAY)
    jitter = random.random()  # noqa: S311  (no secret)
    wait = PERMANENT_WAIT if failure.permanent else backoff.delay(attempts, jitter, first)
    if failure.code in NEEDS_PERSON:
        wait = NEXT_TRY
        draft.set(start_attempts=0)  # nothing was wrong with these starts: they must not add up to giving up
    draft.set(next_restart_at=None if failure.needs_user else draft.at + wait)
    if failure.needs_user:
        hold_unsent(draft)
        withdraw_continuation(draft)
    if SESSION.allows(draft.session.state, "fail"):  # one that was given up, and whose workspace was asked for, stays
        draft.move("fail", error_code=failure.code, error_message=message)


def write_stopped(session_id: uuid.UUID, lease: Lease | None, reason: str, close_as: str = "") -> None:
    """The execution has ended as it was asked to: nothing of it is left unfinished, the session can be resumed."""
    with writing(session_id, lease) as draft:
        if reason == IDLE and draft.session.desired_state != DesiredState.RUNNING:
            reason = "stopped"  # by somebody who came while it fell asleep
        interrupt(draft, reason)
        agent_left(draft)
        draft.set(next_restart_at=None)
        draft.move_executor("stop", pid=None, status_reason=reason)
        if close_as:
            waits.end_external(draft, reason)
            _settle_queue(draft)
            draft.work("finish")
            draft.move({"completed": "complete", "cancelled": "cancel"}[close_as])
        elif SESSION.allows(draft.session.state, "stop"):
            draft.move("stop", reason=reason)
        if draft.session.task.is_over:
            draft.work("finish")


def _settle_queue(draft: Draft) -> None:
    """A session that has ended for good sends nothing more: what waited is taken back, what was on its way is held."""
    for row in draft.session.prompts.filter(state__in=[PromptState.QUEUED, PromptState.SENDING]).order_by("id"):
        draft.move_prompt(row, "withdraw" if row.state == PromptState.QUEUED else "hold")

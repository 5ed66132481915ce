"""The status of a session as API and pages show it, and the derived status of many sessions at once."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypedDict, cast

from django.conf import settings
from django.contrib.auth.models import User
from django.db.models import Count, Q
from django.utils import timezone

from executors_app.agent_capabilities import own_title_in_team
from executors_app.models import ExecutorRunning
from executors_app.plugins import agent_type
from executors_app.wire.executions import ExecutorStatus
from sessions_app.agents.services.mcp_servers import given_servers
from sessions_app.attention.services.inbox import open_kinds, overdue_filter
from sessions_app.background.services import KnownProcesses, known_processes
from sessions_app.hosts.supervision import Supervision, place_of
from sessions_app.kernel.rules.states import (
    OPEN_PROMPT_STATES,
    OPEN_RUN_STATES,
    DerivedStatus,
    PermissionState,
    PromptKind,
    PromptState,
    RequestKind,
    RunState,
    TurnOrigin,
)
from sessions_app.kernel.rules.wording import iso_time
from sessions_app.kernel.transactions import derived_status, open_start_intent
from sessions_app.models import (
    CANCEL_IGNORED,
    IDLE_REASON,
    QUEUED_FOR_CAPACITY,
    ContinuityReceipt,
    PermissionRequest,
    Prompt,
    TaskSession,
    Turn,
    WaitKey,
)
from sessions_app.prompts.services import offers_steering, wait_of
from sessions_app.recovery.rules.history import UNKNOWN_FACTS, Injection
from sessions_app.recovery.rules.resumability import UNREACHABLE, Assessment, Reason, Strategy
from sessions_app.recovery.rules.resume_cost import ResumeCost, cost_sentence
from sessions_app.recovery.services.assessment import (
    DAMAGED_ROW,
    assess_session,
    effective_policy_of,
    execution_of,
    flaws_sentence,
    is_running,
    session_flaws,
)
from sessions_app.recovery.services.history import current_history
from sessions_app.recovery.services.resume_costs import expected_cost, first_turn_json, first_turns
from sessions_app.sessions.rules.session_status import (
    BackgroundStatus,
    BudgetHoldStatus,
    CutOffTurnStatus,
    InterruptedWaitStatus,
    OwnWaitStatus,
    ReceiptStatus,
    ResumeCostStatus,
    RetryStatus,
    SessionStatus,
    SuspensionStatus,
    WaitStatus,
)
from sessions_app.sessions.rules.situation_facts import SituationFacts
from sessions_app.sessions.rules.situation_texts import unattended_sentence
from sessions_app.sessions.services.intents import waiting_retry
from sessions_app.sessions.services.situations import situation_facts, start_wait_json, with_situation
from sessions_app.suspensions.continuations import (
    decide_continuation,
    find_cut_off_turn,
    newest_working_turn,
    refused_prompts,
)
from sessions_app.suspensions.models import open_suspension
from sessions_app.turns.models import newest_run, newest_runs
from sessions_app.turns.own_waits import find_open_wait
from sessions_app.turns.rules.transient_errors import TROUBLE_SENTENCES
from sessions_app.usage.models import open_hold
from sessions_app.waits.rules.wait_keys import WaitKeyState, WaitKind, most_usable_state
from sessions_app.workspace.services.workspace import transfer_json
from sessions_app.workspace.services.workspace_notes import warnings_json, workspace_json


class SessionRunState(NamedTuple):
    """A session's execution, its newest run, and the status that follows from both."""

    execution: ExecutorRunning | None
    run: Turn | None
    derived: DerivedStatus


_RUN_COLUMNS: Final = (
    *("state", "reason", "waited", "has_process", "wait_kind", "wait_id", "origin"),
    *("started_at", "ended_at"),
)
"""What lists read of a session's newest run."""
_EXECUTION_COLUMNS: Final = ("id", "status", "status_reason", "session_id", "runtime", "host_id", "error_message")
"""What lists read of a session's execution."""


def load_run_states(sessions: Sequence[TaskSession]) -> Mapping[uuid.UUID, SessionRunState]:
    """Return the run state by session id; a constant number of queries. Of the run it has ``_RUN_COLUMNS`` alone."""
    runs = newest_runs([session.id for session in sessions], _RUN_COLUMNS)
    tokens = _best_tokens([run for run in runs.values() if run.state == RunState.WAITING])
    executions = ExecutorRunning.objects.only(*_EXECUTION_COLUMNS).in_bulk(
        [session.agent_execution_id for session in sessions if session.agent_execution_id]
    )
    states = {}
    for session in sessions:
        run, execution = runs.get(session.id), executions.get(cast(Any, session.agent_execution_id))
        derived = derived_status(session, execution, run, lambda waiting: tokens[waiting.id])
        states[session.id] = SessionRunState(execution, run, derived)
    return states


def _best_tokens(runs: Sequence[Turn]) -> Mapping[uuid.UUID, WaitKeyState | None]:
    """Return the most usable state among the keys of what each run still waits for."""
    if not runs:
        return {}
    now, states = timezone.now(), defaultdict(list)
    waits = {run.id: run.wait_id for run in runs}
    pending = set(
        PermissionRequest.objects.filter(run__in=runs, state=PermissionState.PENDING).values_list("run_id", "id")
    )
    for key in WaitKey.objects.filter(run__in=runs):
        run_id = cast(uuid.UUID, key.run_id)
        is_waited = key.wait_kind != WaitKind.PERMISSION and key.wait_id == waits[run_id]
        if is_waited or (run_id, key.wait_id) in pending:
            states[run_id].append(key.state(now))
    return {run.id: most_usable_state(states[run.id]) for run in runs}


CLAIMS_TO_RUN = (ExecutorStatus.STARTING, ExecutorStatus.READY)


def session_status(session: TaskSession, user: User | None = None) -> dict[str, Any]:
    """Return the status of one session as API and sockets send it; see ``load_status``."""
    return load_status(session, user).as_json()


class SessionReading(NamedTuple):
    """What was read of one session: its status, and what the status follows from."""

    status: SessionStatus
    assessment: Assessment
    facts: SituationFacts


def load_status(session: TaskSession, user: User | None = None) -> SessionStatus:
    """Load the status of one session; see ``read_session``."""
    return read_session(session, user).status


def read_session(session: TaskSession, user: User | None = None) -> SessionReading:
    """Read the status of one session and what it follows from, with a constant number of queries.

    Items that ``user`` has already seen do not count as needing attention.
    """
    execution = execution_of(session)
    assessment = assess_session(session)
    counts, run = _counts(session), newest_run(session)
    start, runs = open_start_intent(session), is_running(session, execution)
    open_ones = open_kinds(session, user)
    is_told = tells_history(session, assessment)
    history = current_history(session) if is_told else None
    processes, policy = known_processes(session), effective_policy_of(session)
    error_code, error_message, retry = session.error_code, session.error_message, None
    supervision, is_ordered = Supervision(), start is not None
    place = needed_place(session, execution, is_start_ordered=is_ordered)
    unattended_host = supervision.name_unattended([place]).get(place, "")
    if unattended_host:
        error_code, error_message = UNREACHABLE, unattended_sentence(unattended_host)
    damage = flaws_sentence(session_flaws(session, execution))
    if damage:  # takes precedence over the session's own error
        error_code, error_message = DAMAGED_ROW, damage
    if counts["retries"]:
        retry = _retry(session)
    status = SessionStatus(
        session_id=str(session.id),
        task_id=str(session.task_id),
        state=session.state,
        derived_status=str(derived_status(session, execution, run)),
        wait=wait_json(run),
        interrupted_wait=_interrupted_wait(session, run),
        agent_profile_id=str(session.agent_profile_id),
        agent_type=session.agent_profile.agent_type,
        agent_title=own_title_in_team(session.agent_profile, session.task.team_id),
        executor_id=str(session.executor_id),
        executor_pool=session.executor_pool,
        placement_reason=session.placement_reason,
        runtime=session.executor.runtime,
        **_execution_part(execution),
        supports_workspace_only=_serves_workspace(session, execution, assessment),
        is_agent_running=runs,
        background_processes=list(processes.processes),
        background_process_count=processes.count,
        background=_background(processes),
        is_resumable=assessment.is_resumable,
        needs_resume=assessment.needs_resume,
        resume_reason=assessment.resume_reason,
        resume_strategy=assessment.strategy,
        supports_session_resume=assessment.supports_session_resume,
        requires_new_session=not assessment.is_resumable,
        desired_state=session.desired_state,
        work_state=session.work_state,
        needs_attention=any(counts[name] for name in ("permissions", "questions", "held", "overdue"))
        or any(open_ones.values()),
        worktree_id=session.worktree_id,
        worktree_path=session.worktree_path,
        worktree_branch=session.worktree_branch,
        workspace=workspace_json(session),
        warnings=warnings_json(session),
        error_code=error_code,
        error_message=error_message,
        last_seq=session.last_seq,
        epoch=session.epoch,
        policy=policy.policy,
        policy_source=str(policy.source),
        continues=policy.continues,
        recovering=is_recovering(execution, supervision),
        unattended_host=unattended_host,
        continuing=counts["continuing"] > 0,
        restart_attempts=session.start_attempts,
        next_restart_at=iso_time(session.next_restart_at),
        stalled_since=iso_time(session.stalled_since),
        cancel_ignored_since=_cancel_ignored_since(session, run),
        own_wait=own_wait_json(run),
        suspension=suspension_json(session, run),
        cut_off_turn=cut_off_turn_json(session, run),
        budget_hold=budget_hold_json(session),
        retry=retry,
        history=_history_facts(history, is_told=is_told),
        resume_cost=cost_json(expected_cost(session, assessment, tells_history=is_told, history=history)),
        latest_receipt=_latest_receipt(session),
        pending_permissions=counts["permissions"],
        pending_questions=counts["questions"],
        held_prompts=counts["held"],
        queued_prompts=counts["queued"],
        overdue_prompts=counts["overdue"],
        can_steer=runs and _has_open_turn(run) and offers_steering(session),
        starting=is_ordered,
        queued_for_capacity=bool(start is not None and start.payload.get(QUEUED_FOR_CAPACITY)),
        start_wait=start_wait_json(session, start),
        mcp_servers=given_servers(session),
    )
    facts = situation_facts(session, status, assessment, open_ones, run=run, supervision=supervision)
    return SessionReading(with_situation(status, session, facts), assessment, facts)


def _has_open_turn(run: Turn | None) -> bool:
    """Whether a prompt's turn is open; the agent takes no prompt into one that it has begun itself."""
    if run is None or not run.has_process or run.origin == TurnOrigin.AGENT:
        return False
    return run.state in OPEN_RUN_STATES


def budget_hold_json(session: TaskSession) -> BudgetHoldStatus | None:
    """Return the budget that holds the next prompt back; None if none does."""
    row = open_hold(session.id)
    if row is None:
        return None
    return {
        "scope": row.scope,
        "reason": row.reason,
        "limit": row.limit,
        "used": row.used,
        "since": row.began_at.isoformat(),
    }


def own_wait_json(run: Turn | None) -> OwnWaitStatus | None:
    """Return the wait that the agent has announced in its open turn; None if it does not wait by itself."""
    wait = find_open_wait(run)
    if wait is None:
        return None
    return {"since": wait.since.isoformat(), "until": iso_time(wait.until)}


def suspension_json(session: TaskSession, run: Turn | None) -> SuspensionStatus | None:
    """Return why and until when nothing is sent to the agent; None if its session is not suspended.

    ``run`` is the newest turn.
    """
    row = open_suspension(session.id)
    if row is None:
        return None
    has_prompt = refused_prompts(row, newest_working_turn(run)).exists()
    return {
        "id": str(row.id),
        "reason": row.reason,
        "message": row.message,
        "since": row.began_at.isoformat(),
        "resets_at": row.resets_at.isoformat() if row.resets_at else None,
        "zone": row.zone,
        "until": row.wakes_at.isoformat() if row.wakes_at else None,
        "continuation": str(decide_continuation(session.agent_profile.agent_type, row, has_prompt=has_prompt)),
    }


def cut_off_turn_json(session: TaskSession, run: Turn | None) -> CutOffTurnStatus | None:
    """Return the newest turn if a limit has ended it that is over, and nothing continues it; else None."""
    row = find_cut_off_turn(session, run)
    if row is None or run is None or run.ended_at is None:
        return None  # or the agent works on its own now
    newest = newest_working_turn(run)
    return {
        "suspension_id": str(row.id),
        "message_id": row.run.message_id,
        "reason": row.reason,
        "message": row.message,
        "has_worked": row.has_worked or (newest is not None and newest.id != row.run_id),
    }


def _background(known: KnownProcesses) -> BackgroundStatus:
    return {
        "reported_at": iso_time(known.reported_at),
        "is_current": known.is_current,
        "is_complete": known.is_complete,
        "cpu_seconds": known.cpu_seconds,
        "policy": str(known.policy),
        "policy_source": str(known.policy_source),
        "has_own_policy": known.has_own_policy,
    }


def _retry(session: TaskSession) -> RetryStatus | None:
    """Return what failed, when the turn is retried, and the number of the try; None if no retry is pending."""
    row = waiting_retry(session)
    if row is None:
        return None
    return {
        "message_id": row.message_id,
        "attempt": row.attempt,
        "of": settings.KANDEV_TURN_RETRIES,
        "at": iso_time(row.not_before),
        "error_code": row.trouble,
        "error_message": row.trouble_message,
        "text": TROUBLE_SENTENCES.get(row.trouble, ""),
    }


def _interrupted_wait(session: TaskSession, run: Turn | None) -> InterruptedWaitStatus | None:
    """Return the wait that ended without an answer, unless something has happened since."""
    wait = wait_of(session)
    if wait is None or run is None or wait["run_id"] != str(run.id):
        return None
    return {
        "id": wait["id"],
        "kind": wait["kind"],
        "reason": wait["reason"],
        "deadline": wait["deadline"],
        "at": wait["at"],
    }


def _cancel_ignored_since(session: TaskSession, run: Turn | None) -> str | None:
    """Return since when the agent has continued a turn that it was asked to cancel."""
    ignored: Mapping[str, Any] = session.metadata.get(CANCEL_IGNORED) or {}
    if run is not None and ignored.get("run_id") == str(run.id):
        return str(ignored["since"])
    return None


def _history_facts(history: Injection | None, *, is_told: bool) -> Mapping[str, int | None] | None:
    """Return the counts of the history that the next prompt would carry for a new agent; unknown until it is built."""
    if not is_told:
        return None
    if history is None:
        return UNKNOWN_FACTS
    return history.facts()


def cost_json(cost: ResumeCost | None) -> ResumeCostStatus | None:
    """Return what the next resume costs as the API shows it."""
    if cost is None:
        return None
    context = cost.context
    return {
        "resume_strategy": str(cost.strategy),
        "context_tokens": context.used if context else None,
        "context_size": context.size if context else None,
        "context_reported_at": iso_time(context.at) if context else None,
        "history_characters": cost.history_characters,
        "history_estimated_tokens": cost.history_estimated_tokens,
        "last_turn_ended_at": iso_time(cost.last_turn_ended_at),
        "text": cost_sentence(cost),
    }


def tells_history(session: TaskSession, assessment: Assessment) -> bool:
    """Return whether a new agent would get the history with the next prompt."""
    starts_with_it = assessment.cause.strategy is Strategy.HISTORY and not session.launch_id
    return session.inject_history or starts_with_it


class _ExecutionPart(TypedDict):
    """The part of the status that follows from the execution alone."""

    executor_status: str
    agent_execution_id: str | None
    last_seen_at: str | None
    capability_note: str
    asleep: bool
    output_limit: str
    snapshot_transfer: Mapping[str, Any] | None


def _execution_part(execution: ExecutorRunning | None) -> _ExecutionPart:
    if execution is None:
        return {
            "executor_status": ExecutorStatus.STOPPED,
            "agent_execution_id": None,
            "last_seen_at": None,
            "capability_note": "",
            "asleep": False,
            "output_limit": "",
            "snapshot_transfer": None,
        }
    return {
        "executor_status": execution.status,
        "agent_execution_id": str(execution.id),
        "last_seen_at": iso_time(execution.last_seen_at),
        "capability_note": execution.capability_note,
        "asleep": is_asleep(execution),
        "output_limit": execution.output_limit,
        "snapshot_transfer": transfer_json(execution),
    }


def _serves_workspace(session: TaskSession, execution: ExecutorRunning | None, assessment: Assessment) -> bool:
    """Return whether the workspace opens without an agent: by agent type, worktree, and agentctl's last report."""
    if assessment.cause.resume_reason in (Reason.WORKTREE_MISSING, Reason.DAMAGED_ROW):
        return False
    by_type = agent_type(session.agent_profile.agent_type).supports_workspace_only
    return by_type and execution is not None and execution.supports_workspace_only


def is_asleep(execution: ExecutorRunning | None) -> bool:
    """Return whether the execution was stopped because it was idle; a prompt starts it again."""
    return execution is not None and (execution.status, execution.status_reason) == (
        ExecutorStatus.STOPPED,
        IDLE_REASON,
    )


def _counts(session: TaskSession) -> dict[str, int]:
    queued = Q(state=PromptState.QUEUED)
    prompts: dict[str, int] = Prompt.objects.filter(session=session).aggregate(
        held=Count("id", filter=Q(state=PromptState.HELD)),
        queued=Count("id", filter=queued),
        overdue=Count("id", filter=overdue_filter()),
        retries=Count("id", filter=queued & Q(kind=PromptKind.RETRY)),
        continuing=Count("id", filter=Q(kind=PromptKind.CONTINUE, state__in=OPEN_PROMPT_STATES)),
    )
    pending = PermissionRequest.objects.filter(session=session, state=PermissionState.PENDING)
    kinds = list(pending.values_list("kind", flat=True))
    return {
        **prompts,
        "permissions": kinds.count(RequestKind.PERMISSION),
        "questions": kinds.count(RequestKind.QUESTION),
    }


def wait_json(run: Turn | None) -> WaitStatus | None:
    """Return what the newest run waits for; None if it does not wait."""
    if run is None or run.state != RunState.WAITING:
        return None
    return {
        "id": run.wait_id,
        "kind": run.wait_kind,
        "reason": run.wait_reason,
        "since_seq": run.since_seq,
        "deadline": iso_time(run.deadline_at),
    }


def is_recovering(execution: ExecutorRunning | None, supervision: Supervision) -> bool:
    """Return whether the execution claims to run and no living supervisor has finished its first sweep."""
    if execution is None or execution.status not in CLAIMS_TO_RUN:
        return False
    return not supervision.has_swept


def needed_place(session: TaskSession, execution: ExecutorRunning | None, *, is_start_ordered: bool) -> str:
    """Return the place whose supervisor the session needs now; empty if any supervisor will do, or none is needed."""
    if execution is None:
        return ""
    claims_to_run = execution.status in CLAIMS_TO_RUN or session.error_code == UNREACHABLE
    if claims_to_run or is_start_ordered or session.next_restart_at is not None:
        return place_of(execution)
    return ""


def _latest_receipt(session: TaskSession) -> ReceiptStatus | None:
    """Return the newest receipt with the first turn after it; at most two queries."""
    receipt = session.receipts.with_first_turn().first()
    if receipt is None:
        return None
    return receipt_json(receipt, first_turns([receipt]).get(receipt.id))


def receipt_json(receipt: ContinuityReceipt, first_turn: Turn | None) -> ReceiptStatus:
    """Return a receipt as the API shows it."""
    return {
        "id": str(receipt.id),
        "kind": receipt.kind,
        "verified": receipt.verified,
        "strategy": receipt.strategy,
        "reason": receipt.reason,
        "evidence": receipt.evidence,
        "created_at": receipt.created_at.isoformat(),
        "first_turn": first_turn_json(first_turn),
    }

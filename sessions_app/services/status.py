"""The status of a session as API and pages show it, and the derived status of many sessions at once."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from django.conf import settings
from django.db.models import Count, OuterRef, Q, Subquery
from django.utils import timezone

from executors_app.domain import ExecutorStatus
from executors_app.models import ExecutorRunning
from executors_app.plugins import agent_type
from sessions_app.domain.resumability import Assessment, Reason, Strategy
from sessions_app.domain.states import (
    OPEN_PROMPT_STATES,
    DerivedStatus,
    PermissionState,
    PromptKind,
    PromptState,
    RequestKind,
    RunState,
)
from sessions_app.domain.transient_errors import TROUBLE_SENTENCES
from sessions_app.domain.wait_tokens import TokenState, WaitKind, most_usable_state
from sessions_app.models import (
    CANCEL_IGNORED,
    IDLE_REASON,
    QUEUED_FOR_CAPACITY,
    ContinuityReceipt,
    PermissionRequest,
    Prompt,
    ResumeToken,
    Run,
    Supervisor,
    TaskSession,
)
from sessions_app.models.runs import newest_run
from sessions_app.models.side_effects import derived_status
from sessions_app.services.assessment import (
    DAMAGED_ROW,
    assess_session,
    execution_of,
    flaws_sentence,
    is_running,
    session_flaws,
)
from sessions_app.services.attention import open_kinds, overdue_filter
from sessions_app.services.intents import open_start_intent, waiting_retry
from sessions_app.services.mcp_servers import given_servers
from sessions_app.services.policies import effective_policy_of
from sessions_app.services.prompt_context import load_history, wait_of
from sessions_app.services.situations import idle_reason_json, start_wait_json
from sessions_app.services.workspace import transfer_json


class SessionRunState(NamedTuple):
    """A session's execution, its newest run, and the status that follows from both."""

    execution: ExecutorRunning | None
    run: Run | None
    derived: DerivedStatus


def load_run_states(sessions: Sequence[TaskSession]) -> Mapping[uuid.UUID, SessionRunState]:
    """Return the run state by session id; a constant number of queries."""
    runs = _newest_runs([session.id for session in sessions])
    tokens = _best_tokens([run for run in runs.values() if run.state == RunState.WAITING])
    executions = ExecutorRunning.objects.only("id", "status", "status_reason", "session_id").in_bulk(
        [session.agent_execution_id for session in sessions if session.agent_execution_id]
    )
    states = {}
    for session in sessions:
        run, execution = runs.get(session.id), executions.get(cast(Any, session.agent_execution_id))
        derived = derived_status(session, execution, run, lambda waiting: tokens[waiting.id])
        states[session.id] = SessionRunState(execution, run, derived)
    return states


def _newest_runs(ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, Run]:
    mine = Run.objects.filter(session=OuterRef("session")).order_by("-started_at", "-id")
    found = Run.objects.filter(session__in=ids, id=Subquery(mine.values("id")[:1]))
    return {run.session_id: run for run in found}


def _best_tokens(runs: Sequence[Run]) -> Mapping[uuid.UUID, TokenState | None]:
    """Return the most usable state among the keys of what each run still waits for."""
    if not runs:
        return {}
    now, states = timezone.now(), defaultdict(list)
    waits = {run.id: run.wait_id for run in runs}
    asked = set(
        PermissionRequest.objects.filter(run__in=runs, state=PermissionState.PENDING).values_list("run_id", "id")
    )
    for key in ResumeToken.objects.filter(run__in=runs):
        run_id = cast(uuid.UUID, key.run_id)
        is_waited = key.wait_kind != WaitKind.PERMISSION and key.wait_id == waits[run_id]
        if is_waited or (run_id, key.wait_id) in asked:
            states[run_id].append(key.state(now))
    return {run.id: most_usable_state(states[run.id]) for run in runs}


CLAIMS_TO_RUN = (ExecutorStatus.STARTING, ExecutorStatus.READY)


def session_status(session: TaskSession, user: Any = None) -> dict[str, Any]:
    """Return the status of one session as the API defines it.

    Items that ``user`` has already seen do not count as needing attention.
    """
    execution = execution_of(session)
    assessment = assess_session(session)
    counts, run = _counts(session), newest_run(session)
    start = open_start_intent(session)
    open_ones = open_kinds(session, user)
    status: dict[str, Any] = {
        "session_id": str(session.id),
        "task_id": str(session.task_id),
        "state": session.state,
        "derived_status": str(derived_status(session, execution, run)),
        "wait": wait_json(run),
        "interrupted_wait": _interrupted_wait(session, run),
        "agent_profile_id": str(session.agent_profile_id),
        "agent_type": session.agent_profile.agent_type,
        "executor_id": str(session.executor_id),
        "runtime": session.executor.runtime,
        **_execution_part(execution),
        "supports_workspace_only": _serves_workspace(session, execution, assessment),
        "is_agent_running": is_running(session, execution),
        "is_resumable": assessment.is_resumable,
        "needs_resume": assessment.needs_resume,
        "resume_reason": assessment.resume_reason,
        "resume_strategy": assessment.strategy,
        "supports_session_resume": assessment.supports_session_resume,
        "requires_new_session": not assessment.is_resumable,
        "desired_state": session.desired_state,
        "work_state": session.work_state,
        "needs_attention": any(counts[name] for name in ("permissions", "questions", "held", "overdue"))
        or any(open_ones.values()),
        "worktree_id": session.worktree_id,
        "worktree_path": session.worktree_path,
        "worktree_branch": session.worktree_branch,
        **_error_part(session, execution),
        "last_seq": session.last_seq,
        "epoch": session.epoch,
        **_policy_part(session),
        "recovering": is_recovering(execution),
        "continuing": counts["continuing"] > 0,
        "restart_attempts": session.start_attempts,
        "next_restart_at": session.next_restart_at.isoformat() if session.next_restart_at else None,
        "stalled_since": session.stalled_since.isoformat() if session.stalled_since else None,
        "cancel_ignored_since": _cancel_ignored_since(session, run),
        "retry": _retry(session) if counts["retries"] else None,
        "history": _history(session, assessment),
        "latest_receipt": receipt_json(session.receipts.first()),
        "pending_permissions": counts["permissions"],
        "pending_questions": counts["questions"],
        "held_prompts": counts["held"],
        "queued_prompts": counts["queued"],
        "overdue_prompts": counts["overdue"],
        "starting": start is not None,
        "queued_for_capacity": bool(start is not None and start.payload.get(QUEUED_FOR_CAPACITY)),
        "start_wait": start_wait_json(session, start),
        "mcp_servers": given_servers(session),
    }
    return {**status, "stillness": idle_reason_json(session, status, assessment, open_ones, run)}


def _retry(session: TaskSession) -> dict[str, Any] | None:
    """Return what failed, when the turn is retried, and the number of the try; None if no retry is pending."""
    row = waiting_retry(session)
    if row is None:
        return None
    return {
        "message_id": row.message_id,
        "attempt": row.attempt,
        "of": settings.KANDEV_TURN_RETRIES,
        "at": row.not_before.isoformat() if row.not_before else None,
        "error_code": row.trouble,
        "error_message": row.trouble_message,
        "text": TROUBLE_SENTENCES.get(row.trouble, ""),
    }


def _interrupted_wait(session: TaskSession, run: Run | None) -> dict[str, Any] | None:
    """Return the wait that ended without an answer, unless something has happened since."""
    wait = wait_of(session)
    if wait is None or run is None or wait["run_id"] != str(run.id):
        return None
    return {name: wait[name] for name in ("id", "kind", "reason", "deadline", "at")}


def _cancel_ignored_since(session: TaskSession, run: Run | None) -> str | None:
    """Return since when the agent has continued a turn that it was asked to cancel."""
    told: Mapping[str, Any] = session.metadata.get(CANCEL_IGNORED) or {}
    return str(told["since"]) if run is not None and told.get("run_id") == str(run.id) else None


def _history(session: TaskSession, assessment: Assessment) -> dict[str, int] | None:
    """Return the counts of the history that the next prompt would carry for a new agent."""
    tells = session.inject_history or (assessment.cause.strategy is Strategy.HISTORY and not session.launch_id)
    return load_history(session).facts() if tells else None


def _error_part(session: TaskSession, execution: ExecutorRunning | None) -> dict[str, str]:
    """Return the session's error; damaged rows take precedence."""
    damage = flaws_sentence(session_flaws(session, execution))
    return {
        "error_code": DAMAGED_ROW if damage else session.error_code,
        "error_message": damage or session.error_message,
    }


def _policy_part(session: TaskSession) -> dict[str, Any]:
    """Return the policy in effect, and which level sets it."""
    held = effective_policy_of(session)
    return {"policy": held.policy, "policy_source": str(held.source), "continues": held.continues}


def _execution_part(execution: ExecutorRunning | None) -> dict[str, Any]:
    seen = execution.last_seen_at if execution else None
    return {
        "executor_status": execution.status if execution else ExecutorStatus.STOPPED,
        "agent_execution_id": str(execution.id) if execution else None,
        "last_seen_at": seen.isoformat() if seen else None,
        "capability_note": execution.capability_note if execution else "",
        "asleep": is_asleep(execution),
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
    asked = list(pending.values_list("kind", flat=True))
    return {
        **prompts,
        "permissions": asked.count(RequestKind.PERMISSION),
        "questions": asked.count(RequestKind.QUESTION),
    }


def wait_json(run: Run | None) -> dict[str, Any] | None:
    """Return what the newest run waits for; None if it does not wait."""
    if run is None or run.state != RunState.WAITING:
        return None
    return {
        "id": run.wait_id,
        "kind": run.wait_kind,
        "reason": run.wait_reason,
        "since_seq": run.since_seq,
        "deadline": run.deadline_at.isoformat() if run.deadline_at else None,
    }


def is_recovering(execution: ExecutorRunning | None) -> bool:
    """Return whether the execution claims to run and no living supervisor has finished its first sweep."""
    if execution is None or execution.status not in CLAIMS_TO_RUN:
        return False
    return not Supervisor.objects.alive().filter(swept_at__isnull=False).exists()


def receipt_json(receipt: ContinuityReceipt | None) -> dict[str, Any] | None:
    """Return a receipt as the API shows it."""
    if receipt is None:
        return None
    return {
        "id": str(receipt.id),
        "kind": receipt.kind,
        "verified": receipt.proof,
        "strategy": receipt.strategy,
        "reason": receipt.reason,
        "evidence": receipt.evidence,
        "created_at": receipt.created_at.isoformat(),
    }

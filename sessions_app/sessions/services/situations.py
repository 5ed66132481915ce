"""Load the facts that decide a session's situation, and its place in the start queue."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

from django.conf import settings
from django.db.models import Count, Q

from executors_app import capacity
from executors_app.models import ExecutorRunning
from executors_app.plugins import agent_type
from executors_app.wire.executions import ExecutorStatus
from sessions_app.attention.rules.notices import AttentionKind
from sessions_app.attention.rules.quotations import shorten
from sessions_app.background.rules.background_work import BackgroundPolicy
from sessions_app.hosts.cordons import is_drained, name_of_place
from sessions_app.hosts.supervision import Supervision
from sessions_app.kernel.rules.states import OPEN_RUN_STATES, DesiredState, PromptState, TurnOrigin
from sessions_app.kernel.rules.wording import iso_time
from sessions_app.models import (
    AGENT_AWAITED_SINCE,
    PLACEMENT_WAIT,
    QUEUED_FOR_CAPACITY,
    REFUSED_BY_HOST,
    Intent,
    IntentKind,
    TaskSession,
    Turn,
)
from sessions_app.placement.services.waiting import waiting_starts, waits_like
from sessions_app.recovery.rules.recovery_choices import OFFERING_ACTIONS, RecoveryChoice, recovery_choices
from sessions_app.recovery.rules.resumability import Assessment, Mode, Strategy
from sessions_app.recovery.services.assessment import can_be_taken_over, execution_of
from sessions_app.sessions.rules.session_status import (
    BudgetHoldStatus,
    IdleStatus,
    RetryStatus,
    SessionStatus,
    StartWaitStatus,
)
from sessions_app.sessions.rules.situation_facts import Action, SituationFacts
from sessions_app.sessions.rules.situations import idle_situation, situation
from sessions_app.starts.rules import restart_rules
from sessions_app.starts.rules.restart_rules import WaitReason
from sessions_app.turns.rules.transient_errors import Retry
from sessions_app.usage.rules.budgets import BudgetScope, HoldReason, hold_end_sentence, hold_sentence
from sessions_app.waits.rules.wait_keys import WaitKind


class _Team(NamedTuple):
    """Sizes of a team's start queues: interrupted sessions, others, and all that start before a given rank."""

    urgent: int = 0
    calm: int = 0
    earlier: int = 0


def _team_queues(rank: int) -> dict[int, _Team]:
    """Count the sessions in the start queue by team, and those that start before ``rank``; one query."""
    rows = (
        TaskSession.objects.filter(start_rank__isnull=False)
        .order_by()
        .values("task__team_id")
        .annotate(
            urgent=Count("start_rank", filter=Q(start_rank__lt=0)),
            calm=Count("start_rank", filter=Q(start_rank__gt=0)),
            earlier=Count("start_rank", filter=Q(start_rank__lt=rank)),
        )
    )
    return {team: _Team(*counts) for team, *counts in rows.values_list("task__team_id", "urgent", "calm", "earlier")}


def start_wait_json(session: TaskSession, open_start: Intent | None) -> StartWaitStatus | None:
    """Return why its start waits, with what people need to know, and how many start earlier; None if it does not."""
    waiting = _open_wait_json(session, open_start)
    if waiting is not None:
        return waiting
    execution = execution_of(session)
    if launch_text := launch_wait_text(execution):
        return _start_wait(WaitReason.LAUNCH, text=launch_text)
    if execution is not None and is_drained(execution) and session.desired_state == DesiredState.RUNNING:
        return _start_wait(WaitReason.HOST, host=name_of_place(execution.host_id))
    if session.start_rank is None:
        return None
    reason = WaitReason.TURN
    if _has_no_capacity(session):
        reason = WaitReason.CAPACITY
    return _start_wait(reason, count_waiting_before(session))


def launch_wait_text(execution: ExecutorRunning | None) -> str:
    """Return what a launch that is under way waits for; empty if nothing is known to delay it."""
    if execution is None or execution.status != ExecutorStatus.STARTING:
        return ""
    return str(execution.error_message)


def _open_wait_json(session: TaskSession, open_start: Intent | None) -> StartWaitStatus | None:
    """Return why a start that is requested has not begun; None if nothing is known to delay it."""
    if open_start is None:
        return None
    payload = open_start.payload
    refusing_host = payload.get(REFUSED_BY_HOST)
    if refusing_host and not session.executor_pool:  # a pool may have other hosts, so what it says comes first
        return _start_wait(WaitReason.HOST, host=str(refusing_host))
    if open_start.claimed_generation is None and payload.get(PLACEMENT_WAIT):
        return _start_wait(WaitReason.PLACEMENT, text=str(payload[PLACEMENT_WAIT]))
    if payload.get(QUEUED_FOR_CAPACITY):
        return _start_wait(WaitReason.CAPACITY, _ordered_before(session, open_start))
    if refusing_host:
        return _start_wait(WaitReason.HOST, host=str(refusing_host))
    return None


def _start_wait(reason: WaitReason, before: int = 0, *, host: str = "", text: str = "") -> StartWaitStatus:
    return {"reason": str(reason), "before": before, "host": host, "text": text}


def count_waiting_before(session: TaskSession) -> int:
    """Return how many sessions start before this one in the start queue; one query."""
    rank, team = session.start_rank or 0, session.task.team_id
    queues = _team_queues(rank)
    own = queues.pop(team, _Team())
    if rank < 0:
        others = {team_id: queue.urgent for team_id, queue in queues.items()}
    else:
        others = {team_id: queue.calm for team_id, queue in queues.items()}
    urgent, earlier = 0, own.earlier
    if rank > 0:  # all urgent sessions start first, and those of the own team are among the earlier ones
        urgent = own.urgent + sum(queue.urgent for queue in queues.values())
        earlier -= own.urgent
    return restart_rules.count_before(rank, earlier, others, urgent)


def _ordered_before(session: TaskSession, order: Intent) -> int:
    number: int = waiting_starts().filter(waits_like(order, session), created_at__lt=order.created_at).count()
    return number


def _has_no_capacity(session: TaskSession) -> bool:
    limit = capacity.agent_limit(session.executor)
    return (
        limit is not None
        and capacity.live_executions(capacity.executors_sharing_room(session.executor)).count() >= limit
    )


def with_situation(status: SessionStatus, session: TaskSession, facts: SituationFacts) -> SessionStatus:
    """Return the status with ``stillness`` and ``choices``: why nothing is happening, and the ways to continue."""
    choices: list[RecoveryChoice] = []
    if facts.assessment is not None and situation(facts).action in OFFERING_ACTIONS:
        choices = recovery_choices(facts.assessment, shares_worktree=can_be_taken_over(session))
    return replace(
        status,
        stillness=_idle_reason_json(facts),
        choices=[{"choice": each.choice, "text": each.text, "mode": each.mode} for each in choices],
    )


def _idle_reason_json(facts: SituationFacts) -> IdleStatus | None:
    """Return why nothing is happening: ``{reason, text, next_step, until}``; None if something is, or never will."""
    found = idle_situation(facts)
    if found is None:
        return None
    until = iso_time(found.until)
    return {"reason": str(found.reason), "text": found.text, "next_step": found.next_step, "until": until}


def situation_facts(
    session: TaskSession,
    status: SessionStatus,
    assessment: Assessment,
    open_kinds: Collection[str],
    *,
    run: Turn | None,
    supervision: Supervision,
) -> SituationFacts:
    """Build the facts of one session from its status; one query if something waits for a supervisor, else none.

    ``open_kinds``: kinds of its open inbox items; ``run``: its newest turn, None if there was none.
    """
    waits_outside, wait_until = False, None
    if status.wait is not None and status.wait["kind"] != WaitKind.PERMISSION:
        waits_outside, wait_until = True, _parse_time(status.wait["deadline"])
    start_reason, starts_before, start_host, start_text = "", 0, "", ""
    if status.start_wait:
        start_reason, starts_before = status.start_wait["reason"], status.start_wait["before"]
        start_host, start_text = status.start_wait["host"], status.start_wait["text"]
    interrupted_wait, wait_ended_at = None, None
    if status.interrupted_wait:
        interrupted_wait = shorten(status.interrupted_wait["reason"])
        wait_ended_at = _parse_time(status.interrupted_wait["at"])
    last_run_state, last_run_reason, works_alone = "", "", False
    if run:
        last_run_state, last_run_reason = run.state, run.reason
        works_alone = run.origin == TurnOrigin.AGENT and run.state in OPEN_RUN_STATES
    hold = _describe_hold(status.budget_hold)
    return SituationFacts(
        desired_state=status.desired_state,
        work_state=status.work_state,
        policy=status.policy,
        policy_source=status.policy_source,
        error_code=status.error_code,
        error_message=status.error_message,
        recovering=status.recovering,
        unattended_host=status.unattended_host,
        starting=status.starting,
        continuing=status.continuing,
        asleep=status.asleep,
        queued_prompts=status.queued_prompts,
        overdue_prompts=status.overdue_prompts,
        held_prompts=status.held_prompts,
        pending_permissions=status.pending_permissions,
        pending_questions=status.pending_questions,
        history=status.history,
        capability_note=status.capability_note,
        background_process_count=status.background_process_count,
        background_is_current=status.background["is_current"],
        background_ends=status.background["policy"] == BackgroundPolicy.END,
        session_state=status.state,
        agent_running=status.is_agent_running,
        has_agent=session.has_agent,
        workspace_ready=status.executor_status == ExecutorStatus.READY,
        assessment=assessment,
        task_end=session.task.end,
        supervised=not _waits_for_supervisor(status) or supervision.has_supervisor,
        start_reason=start_reason,
        starts_before=starts_before,
        start_host=start_host,
        start_text=start_text,
        waits_outside=waits_outside,
        wait_until=wait_until,
        owner_left=AttentionKind.OWNER_LEFT in open_kinds,
        history_armed=session.inject_history,
        attempts=session.start_attempts,
        next_restart_at=session.next_restart_at,
        waits_by_itself=status.own_wait is not None,
        waits_by_itself_until=_parse_time(status.own_wait["until"]) if status.own_wait else None,
        suspended=status.suspension is not None,
        suspended_until=_parse_time(status.suspension["until"]) if status.suspension else None,
        suspension_message=status.suspension["message"] if status.suspension else "",
        suspension_reason=status.suspension["reason"] if status.suspension else "",
        continuation=status.suspension["continuation"] if status.suspension else "",
        cut_off=status.cut_off_turn is not None,
        cut_off_reason=status.cut_off_turn["reason"] if status.cut_off_turn else "",
        cut_off_has_worked=bool(status.cut_off_turn and status.cut_off_turn["has_worked"]),
        over_budget=status.budget_hold is not None,
        budget_sentence=hold.sentence,
        budget_end=hold.end,
        budget_action=hold.action,
        retrying=status.retry is not None,
        retry=_parse_retry(status.retry),
        stalled_since=session.stalled_since,
        interrupted_wait=interrupted_wait,
        wait_ended_at=wait_ended_at,
        cancel_ignored_since=_parse_time(status.cancel_ignored_since),
        last_run_state=last_run_state,
        works_alone=works_alone,
        last_run_reason=last_run_reason,
    )


class _HoldWords(NamedTuple):
    """A hold of a budget in words, as the facts have it; all are empty if no budget holds a prompt back."""

    sentence: str = ""
    end: str = ""
    action: Action = ""


def _describe_hold(hold: BudgetHoldStatus | None) -> _HoldWords:
    """Return which budget holds the next prompt back, what ends that, and where the budget can be changed."""
    if hold is None:
        return _HoldWords()
    scope, reason = hold["scope"], hold["reason"]
    action: Action = ""
    if reason == HoldReason.USED_UP:
        action = "change_budget" if scope == BudgetScope.SESSION else "open_team_budget"
    sentence = hold_sentence(scope, reason, hold["limit"], hold["used"])
    return _HoldWords(sentence, hold_end_sentence(scope, reason), action)


def _waits_for_supervisor(status: SessionStatus) -> bool:
    """Return whether something waits that only a supervisor carries out."""
    return bool(status.starting or status.queued_prompts or status.recovering or status.start_wait)


def _parse_retry(retry: RetryStatus | None) -> Retry | None:
    if retry is None:
        return None
    at = _parse_time(retry["at"])
    return Retry(retry["error_code"], retry["error_message"], retry["attempt"], retry["of"], at)


def _parse_time(text: str | None) -> datetime | None:
    if text:
        return datetime.fromisoformat(text)
    return None


def add_page_facts(session: TaskSession, facts: SituationFacts) -> SituationFacts:
    """Return the facts with those that a page shows besides: interrupted prompts, progress of a start, and an error.

    The error of the execution is used if the session has none.
    """
    interrupted = session.prompts.filter(state=PromptState.INTERRUPTED, continued_by=None)
    facts = replace(facts, interrupted_prompts=interrupted.count())
    if facts.is_starting:
        facts = replace(facts, **_load_progress(session))
    execution = execution_of(session)
    if facts.error_message or execution is None:
        return facts
    return replace(facts, error_message=execution.error_message)


def _load_progress(session: TaskSession) -> dict[str, Any]:
    """Return what is known of the start in progress: that it opens a workspace alone, or how long a load may take."""
    start = Intent.objects.filter(session=session, kind=IntentKind.START, done_at=None).first()
    if start is None:
        return {}
    if start.payload.get("mode") == Mode.WORKSPACE_ONLY:
        return {"opens_workspace": True}
    if start.payload.get("strategy") != Strategy.NATIVE:
        return {}
    limit = agent_type(session.agent_profile.agent_type).load_limit(settings.KANDEV_START_TIMEOUT)
    return {"load_limit": limit, "load_since": _parse_time(start.payload.get(AGENT_AWAITED_SINCE))}

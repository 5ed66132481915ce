"""Decide what is going on in a session: an ordered table of situations.

Each row is a condition over plain facts; the first row that matches answers. Pages, chips, the API's ``stillness``,
mail and inbox all take their texts from here. Three questions are asked of the table:

- ``situation``: the first row; what a session's page shows.
- ``idle_situation``: the first row with an ``IdleReason``; why nothing is happening, as the API reports it.
- ``status_label``: the first row with a label; the pill on board, task and session page.

Lists load fewer facts than a session's page: their ``assessment`` is None. Rows that need the assessment carry no
label, so that list and page always show the same pill.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from sessions_app.agents.rules.agent_programs import NEEDS_PERSON_CODES
from sessions_app.kernel.rules.states import (
    OPEN_RUN_STATES,
    TERMINAL_STATES,
    DesiredState,
    RunState,
    SessionState,
    WorkState,
)
from sessions_app.kernel.rules.wording import as_sentence
from sessions_app.recovery.rules.resumability import (
    HOST_LOST,
    LEFT_UNREAD_MESSAGE,
    UNREACHABLE,
    Policy,
    Reason,
    policy_wants_agent,
    token_was_rejected,
)
from sessions_app.sessions.rules import situation_texts
from sessions_app.sessions.rules.situation_facts import (
    DISK_CODES,
    HEADLINES,
    LABELS,
    Code,
    IdleReason,
    Label,
    Situation,
    SituationFacts,
    state_label,
)
from sessions_app.starts.rules.restart_rules import WaitReason

_Row = tuple[Callable[[situation_texts.Facts], bool], situation_texts.Describe]


def situation(facts: SituationFacts) -> Situation:
    """Return the first situation that matches; the last row always does."""
    found = next(describe(facts) for holds, describe in _ROWS if holds(facts))
    if not facts.capability_note or not _is_about_resuming(found, facts):
        return found
    return replace(found, next_step=f"{found.next_step} {facts.capability_note}".strip())


def idle_situation(facts: SituationFacts) -> Situation | None:
    """Return why nothing is happening; None if something is happening, or nothing ever will."""
    if facts.session_state in TERMINAL_STATES or facts.task_end:
        return None
    rows = (describe(facts) for holds, describe in _ROWS if holds(facts))
    return next((row for row in rows if row.reason is not None), None)


def status_label(facts: SituationFacts) -> Label:
    """Return the session's status in a word."""
    rows = (describe(facts) for holds, describe in _ROWS if holds(facts))
    return next(row.label for row in rows if row.label is not None)


_OTHER_ACTIONS: Final = frozenset({"", "review_prompts", "answer"})


def _is_about_resuming(found: Situation, facts: situation_texts.Facts) -> bool:
    """Whether the situation is about resuming the agent, so that the note about its capabilities belongs to it."""
    assessed = facts.assessment
    return assessed is not None and facts.is_resting and assessed.can_be_started and found.action not in _OTHER_ACTIONS


def _because(reason: Reason) -> Callable[[situation_texts.Facts], bool]:
    """Return a condition: a start would meet this obstacle, even if another row of the assessment hides it."""
    return lambda f: f.is_resting and f.assessment is not None and f.assessment.cause.resume_reason is reason


def _has_given_up(f: situation_texts.Facts) -> bool:
    if f.session_state == SessionState.FAILED:
        return True
    return f.is_resting and f.assessment is not None and f.assessment.resume_reason is Reason.GAVE_UP


def _waits_for_limit(f: situation_texts.Facts) -> bool:
    """Whether a limit or an outage keeps it at rest. Without a known end, a prompt is an attempt, and may run."""
    return f.suspended and f.desired_state != DesiredState.STOPPED and f.last_run_state not in OPEN_RUN_STATES


def _waits_for_budget(f: situation_texts.Facts) -> bool:
    """Whether a budget keeps the session at rest: no turn runs, and the next prompt is not sent."""
    return f.over_budget and f.desired_state != DesiredState.STOPPED and f.last_run_state not in OPEN_RUN_STATES


def waits_by_policy(f: SituationFacts) -> bool:
    """Whether the recovery policy keeps an agent from being started automatically."""
    if f.agent_running or f.assessment is None or not f.assessment.needs_resume or f.policy not in set(Policy):
        return False
    return not policy_wants_agent(f.policy, f.work_state, f.queued_prompts > 0, boot=False)


def _is_your_turn(f: situation_texts.Facts) -> bool:
    return f.agent_running and f.work_state != WorkState.WORKING and not f.queued_prompts


def _works_outside_turn(f: situation_texts.Facts) -> bool:
    """Whether the agent works without a prompt; release 1.0 recorded no turn for that."""
    is_ready = f.agent_running and f.session_state == SessionState.WAITING_FOR_INPUT
    return f.works_alone or (is_ready and f.work_state == WorkState.WORKING)


def _describe_failed_turn(f: situation_texts.Facts) -> Situation:
    reason = IdleReason.YOUR_TURN if _is_your_turn(f) else None
    label = LABELS[Code.TURN_FAILED]
    if f.turn_wants_login:
        text = "The turn failed: the agent is not logged in."
        step = "Log in. When the login ends, the prompt is sent again."
        return Situation(Code.TURN_FAILED, "warning", text, step, reason=reason, label=label)
    return Situation(Code.TURN_FAILED, "", "The turn failed.", "", reason=reason, label=label)


_SUPERVISOR_HINT: Final = "Ask an administrator to start one (`manage.py supervise`, or `serve`)."

_ROWS: Final[tuple[_Row, ...]] = (
    (
        lambda f: f.assessment is not None and f.assessment.resume_reason is Reason.DAMAGED_ROW,
        lambda f: Situation(
            Code.DAMAGED,
            "error",
            "This session’s record is damaged. An administrator needs to repair it.",
            as_sentence(f.error_message),
        ),
    ),
    (lambda f: bool(f.task_end) or f.session_state in TERMINAL_STATES, situation_texts.over),
    (
        # Before the rows about supervisors: one of another host can neither reach its agent nor carry out its start.
        lambda f: f.unattended_host != "",
        situation_texts.host_unattended,
    ),
    (
        lambda f: f.recovering and not f.supervised,
        lambda _: Situation(
            Code.SUPERVISOR_STARTING,
            "info",
            "The server has just started, and no supervisor is running yet. What you see may be out of date.",
            f"Wait a moment. If this stays: {_SUPERVISOR_HINT}",
            reason=IdleReason.NO_SUPERVISOR,
            label=LABELS[Code.RECOVERING],
        ),
    ),
    (
        lambda f: f.recovering,
        situation_texts.fixed(
            Code.RECOVERING,
            "info",
            "The server has just started and is reconnecting to this session. What you see may be out of date.",
            "Wait a moment.",
            reason=IdleReason.RECOVERING,
        ),
    ),
    (
        lambda f: f.error_code == UNREACHABLE and f.error_message == LEFT_UNREAD_MESSAGE,
        situation_texts.fixed(
            Code.UNREACHABLE,
            "warning",
            "The agent has ended, but its last output cannot be read yet. It may have finished its turn.",
            "Kandev keeps trying, and continues when it knows. If this lasts, check the machine or the cluster; “Test” "
            "on its executor says why it cannot be reached.",
            reason=IdleReason.UNREACHABLE,
        ),
    ),
    (
        # Before the rows about starts: a prompt requests a start, but nothing can start until the machine answers.
        lambda f: f.error_code == UNREACHABLE,
        situation_texts.fixed(
            Code.UNREACHABLE,
            "warning",
            "The agent’s machine does not answer. The agent may still be working; nothing was stopped.",
            "Kandev keeps trying. What the agent did meanwhile appears when the machine answers. "
            "If this lasts, check the machine or the cluster; “Test” on its executor says why it cannot be reached.",
            reason=IdleReason.UNREACHABLE,
        ),
    ),
    (
        lambda f: f.error_code in DISK_CODES,
        lambda f: Situation(Code.DISK, "error", as_sentence(f.error_message), "Nothing that is shown here is lost."),
    ),
    (lambda f: f.pending_permissions > 0, situation_texts.permission),
    (lambda f: f.pending_questions > 0, situation_texts.question),
    (lambda f: f.held_prompts > 0, situation_texts.held),
    (
        _because(Reason.WORKTREE_MISSING),
        lambda f: Situation(
            Code.WORKTREE_MISSING,
            "error",
            f"{HEADLINES[Code.WORKTREE_MISSING]}.",
            as_sentence(f.error_message),
            "new_session",
        ),
    ),
    (_has_given_up, situation_texts.gave_up),
    (
        _because(Reason.CONTEXT_MISMATCH),
        situation_texts.fixed(
            Code.CONTEXT_MISMATCH,
            "error",
            f"{HEADLINES[Code.CONTEXT_MISMATCH]}. Choose how to continue.",
            situation_texts.CHOOSE_HOW_TO_CONTINUE,
            action="choose_conversation",
        ),
    ),
    (
        lambda f: not f.supervised and f.desired_state != DesiredState.STOPPED,
        situation_texts.fixed(
            Code.NO_SUPERVISOR,
            "warning",
            "No supervisor is running, so requests are not carried out.",
            _SUPERVISOR_HINT,
            reason=IdleReason.NO_SUPERVISOR,
        ),
    ),
    (lambda f: f.start_reason == WaitReason.LAUNCH, situation_texts.waits_for_launch),
    (lambda f: f.start_reason == WaitReason.PLACEMENT, situation_texts.waits_for_place),
    (
        lambda f: f.start_reason == WaitReason.CAPACITY,
        situation_texts.in_start_queue(
            Code.CAPACITY,
            "Too many agents run on this executor. This one starts when there is room.",
            IdleReason.CAPACITY,
        ),
    ),
    (lambda f: f.is_resting and f.error_code == HOST_LOST, situation_texts.host_lost),
    (lambda f: f.start_reason == WaitReason.HOST, situation_texts.refused_by_host),
    (
        lambda f: f.start_reason == WaitReason.TURN,
        situation_texts.in_start_queue(
            Code.START_QUEUE, "Many agents are being started. This one waits for its turn.", IdleReason.TURN
        ),
    ),
    (lambda f: f.is_resting and f.error_code in NEEDS_PERSON_CODES, situation_texts.program),
    (
        lambda f: f.is_down and f.next_restart_at is not None and f.error_code not in NEEDS_PERSON_CODES,
        situation_texts.backing_off,
    ),
    (_because(Reason.NOT_RESUMABLE), situation_texts.not_resumable),
    (
        _because(Reason.MISSING_RESUME_TOKEN),
        situation_texts.fixed(
            Code.MISSING_RESUME_TOKEN,
            "error",
            situation_texts.NO_CONVERSATION_ID,
            situation_texts.FRESH_START_HINT,
            action="fresh_start",
        ),
    ),
    (
        lambda f: f.is_resting and f.assessment is not None and token_was_rejected(f.assessment),
        situation_texts.token_rejected,
    ),
    (lambda f: f.overdue_prompts > 0, situation_texts.overdue),
    (_waits_for_limit, situation_texts.suspended),
    (_waits_for_budget, situation_texts.over_budget),
    (lambda f: f.retrying and not f.is_down, situation_texts.retrying),
    (lambda f: f.cancel_ignored_since is not None, situation_texts.cancel_ignored),
    (lambda f: f.waits_by_itself, situation_texts.own_wait),
    (lambda f: f.stalled_since is not None, situation_texts.stalled),
    (lambda f: f.is_starting, situation_texts.starting),
    (lambda f: f.waits_outside, situation_texts.outside),
    (lambda f: f.interrupted_wait is not None and not f.queued_prompts, situation_texts.wait_interrupted),
    (
        lambda f: f.continuing,
        situation_texts.fixed(Code.CONTINUING, "info", "The agent was interrupted, and Kandev asks it to continue."),
    ),
    (lambda f: f.interrupted_prompts > 0, situation_texts.interrupted),
    (
        lambda f: f.desired_state == DesiredState.STOPPED and f.session_state != SessionState.CREATED,
        situation_texts.stopped,
    ),
    (
        lambda f: f.owner_left and not f.agent_running,
        lambda _: Situation(
            Code.OWNER_LEFT,
            "info",
            f"{HEADLINES[Code.OWNER_LEFT]}.",
            "Any member of the team can resume it.",
            "resume",
            IdleReason.OWNER_LEFT,
        ),
    ),
    (lambda f: f.session_state == SessionState.ERROR, situation_texts.error),
    (lambda f: f.cut_off and not f.queued_prompts and not f.is_starting, situation_texts.cut_off),
    (lambda f: f.queued_prompts > 0, situation_texts.queued),
    (lambda f: f.history_armed and not f.is_resting, situation_texts.history_armed),
    (lambda f: f.asleep and f.is_down, situation_texts.asleep),
    (lambda f: not f.has_agent, situation_texts.workspace),
    (waits_by_policy, situation_texts.not_running(Code.POLICY, IdleReason.POLICY, situation_texts.policy_step)),
    (
        lambda f: f.is_resting and f.assessment is not None and f.assessment.needs_resume,
        situation_texts.not_running(
            Code.RESTART_DUE, IdleReason.NEXT_LOOK, lambda _: "Kandev starts it automatically."
        ),
    ),
    (
        lambda f: f.is_resting,
        situation_texts.not_running(Code.NOT_RUNNING, None, lambda _: situation_texts.RESUME_HINT),
    ),
    (
        _works_outside_turn,
        situation_texts.fixed(
            Code.WORKING,
            "",
            "The agent is working on its own.",
            "Prompts you send now wait until it has finished.",
        ),
    ),
    (
        lambda f: f.session_state == SessionState.WAITING_FOR_INPUT and f.last_run_state == RunState.FAILED,
        _describe_failed_turn,
    ),
    (
        _is_your_turn,
        lambda f: Situation(
            Code.YOUR_TURN,
            "",
            "The agent is idle.",
            f"Send a prompt to continue. {situation_texts.background_sentence(f)}".strip(),
            reason=IdleReason.YOUR_TURN,
            label=state_label(f.session_state),
        ),
    ),
    (
        lambda f: f.session_state == SessionState.RUNNING,
        situation_texts.fixed(Code.WORKING, "", "The agent is working.", "Prompts you send now are queued."),
    ),
    (lambda _: True, lambda f: Situation(Code.OTHER, "", "", label=state_label(f.session_state))),
)

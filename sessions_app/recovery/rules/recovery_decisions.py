"""Decisions of a sweep's rules, and the moves that they consist of.

A decision is a dict of ``Decision`` fields; fields that it omits keep their defaults.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from executors_app.wire.executions import ExecutorStatus
from executors_app.wire.protocol import AgentState
from sessions_app.kernel.rules.states import SESSION, SessionState
from sessions_app.kernel.rules.wording import plural
from sessions_app.recovery.rules.recovery_facts import UNREACHABLE, WORKTREE_MISSING, Case
from sessions_app.recovery.rules.resumability import Reason
from sessions_app.sessions.rules.situation_texts import REFUSALS

Fields = dict[str, Any]
S, E = SessionState, ExecutorStatus
CANNOT_RESUME = "This agent cannot resume previous sessions. Create a new session."


# --- moves: the functions return None if there is nothing to move ---


def _executor_ready(case: Case) -> str | None:
    """Return the move towards ``ready``; from ``stopped`` that takes two sweeps, through ``starting``."""
    status = case.facts.executor_status
    if status == E.READY:
        return None
    if status in (None, E.STOPPED):
        return "launch"
    return "ready"


def _executor_stop(case: Case) -> str | None:
    """Return ``stop`` if the row claims to run. Any error but *unreachable* stays, so that it can be read."""
    claims = case.facts.executor_status in (E.STARTING, E.READY) or case.is_unreachable
    if claims:
        return "stop"
    return None


def _executor_fail(case: Case, code: str) -> str | None:
    known = case.facts.executor_status == E.ERROR and case.facts.executor_error_code == code
    if known or case.facts.executor_status is None:
        return None
    return "fail"


def _session_settle(case: Case) -> str | None:
    """Return the move that lets a session wait for its user if it claims an agent."""
    claims = case.facts.session_state in (S.STARTING, S.RUNNING)
    if claims or (case.facts.session_state == S.ERROR and case.is_unreachable):
        return "interrupt"
    return None


def _session_fail(case: Case, *, anew: bool) -> str | None:
    """Return ``fail`` if the session may get this error; ``anew`` replaces the error of a session in ERROR."""
    state = case.facts.session_state
    if SESSION.allows(state, "fail") and (anew or state != S.ERROR):
        return "fail"
    return None


def _session_as_reported(case: Case) -> str | None:
    """Return the move to the state that agentctl reports; None if the session is there already."""
    facts, state = case.facts, case.facts.session_state
    if facts.attached and not case.is_unreachable:
        return None  # the open event stream moves it
    if state == S.CREATED:
        return "start"
    if state == S.ERROR and facts.executor_status == E.READY and not case.is_agent_working:
        return None  # the error is about the conversation, not about the execution
    if case.is_agent_working:
        move, target = "turn_started", S.RUNNING
    elif case.agent_state == AgentState.STARTING:
        move, target = "start", S.STARTING
    else:
        move, target = "ready", S.WAITING_FOR_INPUT
    if state not in (target, S.FAILED) and SESSION.allows(state, move):
        return move
    return None


# --- decisions ---


def leave_unchanged(reason: str, *, needs_recheck: bool = False) -> Callable[[Case], Fields]:
    """Return a decision that changes nothing."""
    return lambda case: {"reason": case.observation.reason or reason, "needs_recheck": needs_recheck}


def stop_execution(case: Case) -> Fields:
    """Take a snapshot, then stop: what the user wants takes precedence over the agent's work."""
    return {"executor_move": _executor_stop(case), "agent_action": "stop", "reason": "no longer wanted"}


def end_asleep_execution(case: Case) -> Fields:
    """End an execution whose session was put to sleep."""
    return {"agent_action": "stop", "reason": "was put to sleep and still answers"}


def mark_unreachable(case: Case) -> Fields:
    """Report that the execution does not answer; run, prompts and work state stay as they are."""
    executor_move = _executor_fail(case, UNREACHABLE)
    return {
        "executor_move": executor_move,
        "session_move": _session_fail(case, anew=executor_move is not None),
        "session_error_code": UNREACHABLE,
        "reason": case.observation.reason or "no answer",
        "error_message": "The session's agentctl does not answer; its agent may still be working. Checking again.",
        "needs_recheck": True,
    }


def reattach(case: Case) -> Fields:
    """Continue with the running agent; its report decides the session's state."""
    return {
        "executor_move": _executor_ready(case),
        "session_move": _session_as_reported(case) if case.agent_state else None,
        "agent_action": "none" if case.facts.attached else "reattach",
        "reason": _who_answers(case),
    }


def _who_answers(case: Case) -> str:
    report, known = case.observation.report, case.facts.known_launch_id
    launch_id = report["agent"].get("launch_id") if report else None
    is_later = known and launch_id not in (None, known)
    if is_later:
        return "the agent of a later launch is running"
    return "the agent is running"


def leave_for_later(case: Case) -> Fields:
    """Start nothing: a page, a prompt or a user may request the agent later."""
    return {
        "executor_move": _executor_ready(case) if case.is_alive else _executor_stop(case),
        "session_move": _session_settle(case),
        "interrupt_run": case.facts.has_open_run,
        "reason": str(case.assessment.resume_reason),
    }


def mark_stopped(case: Case) -> Fields:
    """Record that nothing runs."""
    return leave_for_later(case) | {"reason": "no longer wanted"}


def leave_without_owner(case: Case) -> Fields:
    """Start nothing: the owner is no longer in the team."""
    return leave_for_later(case) | {"reason": "the session's owner has left the team"}


def back_off(case: Case) -> Fields:
    """Start nothing until the next attempt is due."""
    at = case.facts.next_restart_at
    return leave_for_later(case) | {"reason": f"next try at {at:%H:%M:%S}" if at else ""}


def wait_for_turn(case: Case) -> Fields:
    """Start nothing until its turn in the start queue."""
    return leave_for_later(case) | {"reason": f"waits for its turn: {case.facts.before} before it"}


def give_up(case: Case) -> Fields:
    """Stop restarting it: only a user can."""
    attempts = case.facts.attempts
    started = plural(attempts, "Started once", "Started {} times")
    return leave_for_later(case) | {
        "session_move": "give_up" if SESSION.allows(case.facts.session_state, "give_up") else None,
        "session_error_code": str(Reason.GAVE_UP),
        "reason": plural(attempts, "1 start without success", "{} starts without success"),
        "error_message": f"{started} without success. Fix the cause, then try again.",
    }


def resume(case: Case) -> Fields:
    """Resume the agent, after launching its execution again if that is gone."""
    return leave_for_later(case) | {
        "executor_move": _executor_ready(case) if case.is_alive else "launch",
        "session_move": "start",
        "agent_action": "resume",
        "strategy": case.assessment.strategy,
    }


def start_workspace(case: Case) -> Fields:
    """Start the execution of a session that has no agent."""
    return leave_for_later(case) | {"executor_move": "launch", "agent_action": "start_workspace"}


def start_workspace_not_resumable(case: Case) -> Fields:
    """Start the workspace, and report that the agent cannot be resumed."""
    if case.is_alive:
        gone = {}
    else:
        gone = {"executor_move": "launch", "agent_action": "start_workspace"}
    return mark_not_resumable(case) | gone


def mark_not_resumable(case: Case) -> Fields:
    """Report that the agent cannot be resumed, and start nothing."""
    reason = case.assessment.cause.resume_reason
    own = {Reason.CONTEXT_MISMATCH, Reason.WORKTREE_MISSING}
    return leave_for_later(case) | {
        "session_move": _session_fail(case, anew=case.is_unreachable),
        "session_error_code": str(reason) if reason in own else str(Reason.NOT_RESUMABLE),
        "error_message": REFUSALS.get(reason) or _workspace_error(case, reason) or CANNOT_RESUME,
    }


def _workspace_error(case: Case, reason: Reason) -> str:
    if reason is not Reason.WORKTREE_MISSING:
        return ""
    said = case.observation.workspace_reason or case.facts.workspace_reason
    return said or "The session's worktree is gone and cannot be rebuilt."


def mark_workspace_gone(case: Case) -> Fields:
    """Report why nothing can be started; row and token are kept."""
    executor_move = _executor_fail(case, WORKTREE_MISSING)
    message = _workspace_error(case, Reason.WORKTREE_MISSING)
    return leave_for_later(case) | {
        "executor_move": executor_move,
        "session_move": _session_fail(case, anew=executor_move is not None),
        "session_error_code": WORKTREE_MISSING,
        "reason": message,
        "error_message": message,
    }

"""Decide what a sweep does about one execution: ordered rules, as pure functions.

``decide`` returns the decision, ``explain_decision`` the reasons that ``--explain`` prints.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from executors_app.wire.executions import ExecutorStatus, Observation, Observed
from sessions_app.recovery.rules.recovery_decisions import (
    back_off,
    end_asleep_execution,
    give_up,
    leave_for_later,
    leave_unchanged,
    leave_without_owner,
    mark_not_resumable,
    mark_stopped,
    mark_unreachable,
    mark_workspace_gone,
    reattach,
    resume,
    start_workspace,
    start_workspace_not_resumable,
    stop_execution,
    wait_for_turn,
)
from sessions_app.recovery.rules.recovery_facts import MAX_CLOCK_SKEW, OTHER_HOST, Case, Decision, SweepFacts

E = ExecutorStatus


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule; ``says`` is its sentence in docs/recovery.md."""

    name: str
    when: Callable[[Case], bool]
    then: Callable[[Case], dict[str, Any]]
    says: str


# --- conditions ---


def _is_asleep(case: Case) -> bool:
    """Whether the session was put to sleep and nothing has woken it since."""
    facts = case.facts
    woken = facts.has_queued_prompts or facts.start_in_flight or case.is_agent_working
    return facts.asleep and not woken


def _is_backing_off(case: Case) -> bool:
    # A date more than MAX_CLOCK_SKEW ahead comes from a wrong clock: waiting for it could take forever.
    at = case.facts.next_restart_at
    return case.is_start_wanted and at is not None and case.now < at <= case.now + MAX_CLOCK_SKEW


RULES = (
    Rule(
        "foreign_lease",
        lambda c: c.facts.foreign_lease,
        leave_unchanged("another supervisor holds it", needs_recheck=True),
        "Another supervisor holds a valid lease; the session is left to it.",
    ),
    Rule(
        "other_host",
        lambda c: c.is_unknown and c.observation.reason == OTHER_HOST,
        leave_unchanged(OTHER_HOST),
        "The execution runs on another machine; nothing is written.",
    ),
    Rule(
        "attached",
        lambda c: c.facts.attached and c.observation.observed is not Observed.ALIVE,
        leave_unchanged("its stream lives", needs_recheck=True),
        "Our event stream from it is open, so it counts as alive even if it could not be observed.",
    ),
    Rule(
        "alive_unwanted",
        lambda c: c.is_alive and c.is_unwanted,
        stop_execution,
        "The session is stopped, archived or closed: take a snapshot and stop the execution.",
    ),
    Rule(
        "asleep_but_alive",
        lambda c: _is_asleep(c) and c.is_alive,
        end_asleep_execution,
        "The session was put to sleep, but its execution still runs: end it.",
    ),
    Rule(
        "asleep",
        lambda c: _is_asleep(c) and not c.is_unwanted,
        leave_unchanged("idle"),
        "The session is asleep and stays asleep.",
    ),
    Rule(
        "start_under_way",
        # At boot, a live agent is attached at once instead; its start then finds it running.
        lambda c: c.is_start_under_way and not (c.facts.boot and c.is_agent_alive) and not c.is_unwanted,
        leave_unchanged("a start is under way"),
        "A start is in progress and has time left; wait for it.",
    ),
    Rule(
        "unknown_stopped",
        lambda c: c.is_unknown and c.facts.executor_status in (None, E.STOPPED),
        leave_unchanged("no answer", needs_recheck=True),
        "Nothing should be running, and the execution cannot be observed: check again.",
    ),
    Rule(
        "unknown_boot",
        lambda c: c.is_unknown and c.facts.boot,
        mark_unreachable,
        "No answer at boot: report it as unreachable, and start or end nothing.",
    ),
    Rule(
        "unknown_again",
        lambda c: c.is_unknown and (c.facts.unknown_before or c.is_unreachable),
        mark_unreachable,
        "No answer twice: report it as unreachable, and start or end nothing. The next answer restores it.",
    ),
    Rule(
        "unknown_first",
        lambda c: c.is_unknown,
        leave_unchanged("no answer", needs_recheck=True),
        "No answer: check again before reporting it.",
    ),
    Rule(
        "alive_no_report",
        lambda c: c.is_alive and c.agent_state is None,
        reattach,
        "agentctl runs but reports no agent state: open its event stream.",
    ),
    Rule(
        "alive_workspace_session",
        lambda c: c.is_alive and not c.facts.has_agent,
        leave_for_later,
        "The session is a workspace without an agent, and it is open: open its event stream.",
    ),
    Rule(
        "alive_same_agent",
        lambda c: c.is_alive and c.is_agent_alive,
        reattach,
        "The agent is still running: reattach and read its journal; send nothing.",
    ),
    Rule(
        "alive_workspace_only",
        lambda c: c.is_alive and c.is_workspace_only and not c.assessment.is_resumable and not c.is_workspace_gone,
        leave_for_later,
        "The user wants the workspace only, and it is open; that the agent cannot be resumed is no error.",
    ),
    Rule(
        "alive_agent_gone_not_resumable",
        lambda c: c.is_alive and not c.assessment.is_resumable,
        start_workspace_not_resumable,
        "The agent is gone and cannot be resumed; the workspace stays open.",
    ),
    Rule(
        "dead_unwanted",
        lambda c: not c.is_alive and c.is_unwanted,
        mark_stopped,
        "It is gone and no longer wanted; record that nothing runs.",
    ),
    Rule(
        "owner_left",
        lambda c: c.is_start_wanted and not c.facts.owner_in_team,
        leave_without_owner,
        "The owner has left the team; the session is not started automatically.",
    ),
    Rule(
        "gave_up",
        lambda c: c.is_start_wanted and c.facts.attempts >= c.facts.max_attempts,
        give_up,
        "Too many starts have failed; only a user can start it again.",
    ),
    Rule("backing_off", _is_backing_off, back_off, "The last start failed, and the next attempt is not due yet."),
    Rule(
        "waits_for_turn",
        lambda c: c.is_start_wanted and c.is_waiting_for_turn,
        wait_for_turn,
        "Too many starts are in progress, or the executor is full; the session waits in the queue.",
    ),
    Rule(
        "alive_agent_gone_resume_now",
        lambda c: c.is_alive and c.is_agent_wanted,
        resume,
        "The agent is gone and the policy restarts it: resume.",
    ),
    Rule(
        "alive_agent_gone_resume_later",
        lambda c: c.is_alive,
        leave_for_later,
        "The agent is gone; it is resumed on request.",
    ),
    Rule(
        "dead_resume_now",
        lambda c: c.is_agent_wanted,
        resume,
        "The execution is gone and the policy restarts it: rebuild the workspace if needed, start, and resume.",
    ),
    Rule(
        "dead_workspace_session",
        lambda c: c.is_workspace_wanted and (not c.facts.has_agent or c.is_workspace_only),
        start_workspace,
        "The session is a workspace without an agent, or wanted as one: open it again.",
    ),
    Rule(
        "dead_not_resumable",
        lambda c: c.is_workspace_wanted,
        start_workspace_not_resumable,
        "The execution is gone, the agent cannot be resumed, and the policy restarts it: start the workspace alone.",
    ),
    Rule(
        "dead_not_resumable_later",
        lambda c: c.is_agent_lost and c.facts.has_agent and not c.is_workspace_only,
        mark_not_resumable,
        "The execution is gone and the agent cannot be resumed: report it; the workspace opens on request.",
    ),
    Rule(
        "dead_workspace_gone",
        lambda c: c.is_workspace_gone and c.does_policy_start,
        mark_workspace_gone,
        "The worktree cannot be restored: report why; the row and the resume token are kept.",
    ),
    Rule("dead_resume_later", lambda _: True, leave_for_later, "The execution is gone; it is started on request."),
)
"""In this order; the first rule that matches decides (docs/recovery.md lists them)."""


_FOREIGN_RULES = frozenset({"foreign_lease", "attached", "start_under_way"})
"""Rules under which marked processes may belong to a working agent; a start ends leftovers itself."""

_DESCRIPTIONS = {rule.name: rule.says for rule in RULES}


def decide(facts: SweepFacts, observation: Observation, now: datetime) -> Decision:
    """Decide what to do about one execution: the first rule that matches, and whether to end leftover processes.

    ``facts`` must be read before the observation: otherwise a start that ends in between looks like a lost agent.
    """
    case = Case(facts, observation, now)
    rule = next(rule for rule in RULES if rule.when(case))
    leftovers = observation.observed is Observed.DEAD and observation.leftovers > 0
    return Decision(
        rule=rule.name,
        observed=observation.observed,
        end_leftovers=leftovers and rule.name not in _FOREIGN_RULES,
        **rule.then(case),
    )


def is_start_decision(decision: Decision) -> bool:
    """Return whether the decision creates a start intent."""
    return decision.agent_action in ("resume", "start_workspace")


def postpone_start(facts: SweepFacts, observation: Observation, now: datetime, *, rank: int, reason: str) -> Decision:
    """Return the decision that replaces a start which has to wait in the queue, at ``rank``."""
    waiting = decide(replace(facts, start_rank=rank, admitted=False), observation, now)
    return replace(waiting, start_rank=rank, wait_reason=reason, before=facts.before)


def _task_state(facts: SweepFacts) -> str:
    if facts.task_archived:
        return "archived"
    if facts.task_closed:
        return "closed"
    return "open"


def _lease_state(facts: SweepFacts) -> str:
    if facts.foreign_lease:
        return "another supervisor's"
    if facts.attached:
        return "attached"
    return "free"


def explain_decision(facts: SweepFacts, observation: Observation, decision: Decision) -> list[tuple[str, str]]:
    """``--explain``: label and value, in the order in which the rules use them."""
    report = observation.report
    agent = report["agent"] if report else {}
    assessment = facts.assessment.without_live_agent
    lines = {
        "observed": " ".join(filter(None, (str(observation.observed), observation.reason))),
        "executor": " ".join(filter(None, (str(facts.executor_status or "none"), facts.executor_error_code))),
        "session": f"{facts.session_state}, wanted {facts.desired_state}, work {facts.work_state}",
        "task": _task_state(facts),
        "lease": _lease_state(facts),
        "agent": str(agent.get("state", "not reported")) + (", in a turn" if agent.get("active_turn") else ""),
        "leftovers": str(observation.leftovers),
        "workspace": " ".join(filter(None, (str(facts.workspace), facts.workspace_reason))),
        "resumable": f"row {assessment.row:d}: {assessment.resume_reason}, {assessment.strategy or 'no strategy'}",
        "policy": f"{facts.policy}, {'boot' if facts.boot else 'loop'}",
        "prompts queued": _yes_or_no(facts.has_queued_prompts),
        "open run": _yes_or_no(facts.has_open_run),
        "start under way": _yes_or_no(facts.start_in_flight),
        "starts": f"{facts.attempts} of {facts.max_attempts}",
        "next start": facts.next_restart_at.isoformat() if facts.next_restart_at else _turn_text(facts, decision),
        "rule": f"{decision.rule}: {_DESCRIPTIONS[decision.rule]}",
        "decision": _decision_summary(decision),
    }
    return list(lines.items())


def _turn_text(facts: SweepFacts, decision: Decision) -> str:
    waits = decision.start_rank is not None or (facts.start_rank is not None and not facts.admitted)
    why = f" ({decision.wait_reason})" if decision.wait_reason else ""
    if waits:
        return f"waits for its turn: {facts.before} before it{why}"
    return "at once"


def _yes_or_no(value: bool) -> str:
    if value:
        return "yes"
    return "no"


def _decision_summary(decision: Decision) -> str:
    parts = [
        f"executor {decision.executor_move}" if decision.executor_move else "",
        f"session {decision.session_move} {decision.session_error_code}".strip() if decision.session_move else "",
        f"agent {decision.agent_action} {decision.strategy or ''}".strip() if decision.agent_action != "none" else "",
        "interrupt the open run" if decision.interrupt_run else "",
        "end leftovers" if decision.end_leftovers else "",
        "check again" if decision.needs_recheck else "",
    ]
    return "; ".join(filter(None, parts)) or "nothing to do"

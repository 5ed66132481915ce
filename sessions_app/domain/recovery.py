"""Recovery decisions as pure functions.

The ordered rules of a sweep, the decision for one execution, and its explanation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from executors_app.domain import ExecutorStatus, Observation, Observed
from sessions_app.domain.recovery_decisions import (
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
from sessions_app.domain.recovery_facts import (
    MAX_CLOCK_SKEW,
    OTHER_HOST,
    UNREACHABLE,
    WORKTREE_MISSING,
    Case,
    Decision,
    Policy,
    SweepFacts,
    policy_wants_agent,
)

E = ExecutorStatus


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the table; ``says`` is its sentence in the documents."""

    name: str
    when: Callable[[Case], bool]
    then: Callable[[Case], dict[str, Any]]
    says: str


# --- conditions ---


def _is_asleep(case: Case) -> bool:
    facts = case.facts
    woken = facts.has_queued_prompts or facts.start_in_flight or case.is_agent_working
    return facts.asleep and not woken


def _is_backing_off(case: Case) -> bool:
    at = case.facts.next_restart_at
    return case.is_start_wanted and at is not None and case.now < at <= case.now + MAX_CLOCK_SKEW


def _is_left_to_start(case: Case) -> bool:
    """At boot an agent that already lives is attached at once; its start then finds it running."""
    return case.is_start_under_way and not (case.facts.boot and case.is_agent_alive)


RULES = (
    Rule(
        "foreign_lease",
        lambda c: c.facts.foreign_lease,
        leave_unchanged("another supervisor holds it", needs_recheck=True),
        "Another supervisor holds a fresh lease: it is theirs.",
    ),
    Rule(
        "other_host",
        lambda c: c.is_unknown and c.observation.reason == OTHER_HOST,
        leave_unchanged(OTHER_HOST),
        "A local execution of another machine: nothing is written.",
    ),
    Rule(
        "attached",
        lambda c: c.facts.attached and c.observation.observed is not Observed.ALIVE,
        leave_unchanged("its stream lives", needs_recheck=True),
        "Our stream from it lives: that counts as alive, whatever the look came to.",
    ),
    Rule(
        "alive_unwanted",
        lambda c: c.is_alive and c.is_unwanted,
        stop_execution,
        "Stopped, archived or closed: snapshot, stop.",
    ),
    Rule(
        "asleep_but_alive",
        lambda c: _is_asleep(c) and c.is_alive,
        end_asleep_execution,
        "Falling asleep was cut short: it is ended.",
    ),
    Rule(
        "asleep",
        lambda c: _is_asleep(c) and not c.is_unwanted,
        leave_unchanged("idle"),
        "Sleeping sessions stay asleep.",
    ),
    Rule(
        "start_under_way",
        lambda c: _is_left_to_start(c) and not c.is_unwanted,
        leave_unchanged("a start is under way"),
        "A start is under way and has time left: it is left to it.",
    ),
    Rule(
        "unknown_stopped",
        lambda c: c.is_unknown and c.facts.executor_status in (None, E.STOPPED),
        leave_unchanged("no answer", needs_recheck=True),
        "Nothing claims to run there, and nobody can tell: look again.",
    ),
    Rule(
        "unknown_boot",
        lambda c: c.is_unknown and c.facts.boot,
        mark_unreachable,
        "No answer at boot: said, not acted upon.",
    ),
    Rule(
        "unknown_again",
        lambda c: c.is_unknown and (c.facts.unknown_before or c.is_unreachable),
        mark_unreachable,
        "No answer twice: said, not acted upon; the next answer restores it.",
    ),
    Rule(
        "unknown_first",
        lambda c: c.is_unknown,
        leave_unchanged("no answer", needs_recheck=True),
        "No answer: look again first.",
    ),
    Rule(
        "alive_no_report",
        lambda c: c.is_alive and c.agent_state is None,
        reattach,
        "It lives and tells nothing of its agent: attach and listen.",
    ),
    Rule(
        "alive_workspace_session",
        lambda c: c.is_alive and not c.facts.has_agent,
        leave_for_later,
        "It is a workspace without an agent, and it is open: attach and listen.",
    ),
    Rule(
        "alive_same_agent",
        lambda c: c.is_alive and c.is_agent_alive,
        reattach,
        "The agent is there: reattach, drain the journal, send nothing.",
    ),
    Rule(
        "alive_workspace_only",
        lambda c: c.is_alive and c.is_workspace_only and not c.assessment.is_resumable and not c.is_workspace_gone,
        leave_for_later,
        "Its workspace is open and its user wants no more of it: that its agent cannot come back is no error.",
    ),
    Rule(
        "alive_agent_gone_not_resumable",
        lambda c: c.is_alive and not c.assessment.is_resumable,
        start_workspace_not_resumable,
        "The agent is gone for good: the workspace stays open.",
    ),
    Rule("dead_unwanted", lambda c: not c.is_alive and c.is_unwanted, mark_stopped, "It is gone, and nobody wants it."),
    Rule(
        "owner_left",
        lambda c: c.is_start_wanted and not c.facts.owner_in_team,
        leave_without_owner,
        "The owner has left the team: not started by itself.",
    ),
    Rule(
        "gave_up",
        lambda c: c.is_start_wanted and c.facts.attempts >= c.facts.max_attempts,
        give_up,
        "Started too often without success: only a user starts it again.",
    ),
    Rule("backing_off", _is_backing_off, back_off, "The last start failed: the next one is not due yet."),
    Rule(
        "waits_for_turn",
        lambda c: c.is_start_wanted and c.is_waiting_for_turn,
        wait_for_turn,
        "So many are started already, or its executor is full: it waits for its turn.",
    ),
    Rule(
        "alive_agent_gone_resume_now",
        lambda c: c.is_alive and c.is_agent_wanted,
        resume,
        "The agent is gone and the policy says now: resume.",
    ),
    Rule(
        "alive_agent_gone_resume_later",
        lambda c: c.is_alive,
        leave_for_later,
        "The agent is gone: resumed when asked for.",
    ),
    Rule(
        "dead_resume_now",
        lambda c: c.is_agent_wanted,
        resume,
        "It is gone and the policy says now: rebuild the workspace if needed, start, resume.",
    ),
    Rule(
        "dead_workspace_session",
        lambda c: c.is_workspace_wanted and (not c.facts.has_agent or c.is_workspace_only),
        start_workspace,
        "It is a workspace without an agent, or wanted as one: open it again.",
    ),
    Rule(
        "dead_not_resumable",
        lambda c: c.is_workspace_wanted,
        start_workspace_not_resumable,
        "It is gone, the agent cannot come back and the policy says now: start the workspace alone.",
    ),
    Rule(
        "dead_not_resumable_later",
        lambda c: c.is_agent_lost and c.facts.has_agent and not c.is_workspace_only,
        mark_not_resumable,
        "It is gone and the agent cannot come back: said; its workspace is opened when asked for.",
    ),
    Rule(
        "dead_workspace_gone",
        lambda c: c.is_workspace_gone and c.does_policy_start,
        mark_workspace_gone,
        "The worktree is gone for good: said precisely; row and token stay.",
    ),
    Rule("dead_resume_later", lambda _: True, leave_for_later, "It is gone: started again when asked for."),
)
"""Section 7, completed by the rules 2, 3, 26, 33 and 35."""


def first_match(case: Case) -> tuple[Rule, Decision]:
    """The rule that fires, and what it decides."""
    rule = next(rule for rule in RULES if rule.when(case))
    return rule, Decision(rule=rule.name, observed=case.observation.observed, **rule.then(case))


__all__ = [
    "MAX_CLOCK_SKEW",
    "OTHER_HOST",
    "UNREACHABLE",
    "WORKTREE_MISSING",
    "Decision",
    "Policy",
    "SweepFacts",
    "decide",
    "explain_decision",
    "is_start_decision",
    "policy_wants_agent",
    "postpone_start",
]

_FOREIGN_RULES = frozenset({"foreign_lease", "attached", "start_under_way"})
"""Rules under which marked processes may be somebody's who is at work; a start ends leftovers itself."""

_DESCRIPTIONS = {rule.name: rule.says for rule in RULES}


def decide(facts: SweepFacts, observation: Observation, now: datetime) -> Decision:
    """What to do about one execution: the first rule that fits, and the end of what a dead one has left.

    ``facts`` are read before the look, so that a start that ends meanwhile is not taken for a lost agent.
    """
    _, decision = first_match(Case(facts, observation, now))
    leftovers = observation.observed is Observed.DEAD and observation.leftovers > 0
    return replace(decision, end_leftovers=leftovers and decision.rule not in _FOREIGN_RULES)


def is_start_decision(decision: Decision) -> bool:
    """Whether the decision orders a start."""
    return decision.agent_action in ("resume", "start_workspace")


def postpone_start(facts: SweepFacts, observation: Observation, now: datetime, *, rank: int, reason: str) -> Decision:
    """What is decided in the place of a start that has to wait for its turn, at the place ``rank`` from now on."""
    waiting = decide(replace(facts, start_rank=rank, admitted=False), observation, now)
    return replace(waiting, start_rank=rank, wait_reason=reason, before=facts.before)


def explain_decision(facts: SweepFacts, observation: Observation, decision: Decision) -> list[tuple[str, str]]:
    """``--explain``: label and value, in the order in which the rules ask."""
    report = observation.report
    agent = report["agent"] if report else {}
    assessment = facts.assessment.without_live_agent
    lines = {
        "observed": " ".join(filter(None, (str(observation.observed), observation.reason))),
        "executor": " ".join(filter(None, (str(facts.executor_status or "none"), facts.executor_error_code))),
        "session": f"{facts.session_state}, wanted {facts.desired_state}, work {facts.work_state}",
        "task": "archived" if facts.task_archived else "closed" if facts.task_closed else "open",
        "lease": "another supervisor's" if facts.foreign_lease else "attached" if facts.attached else "free",
        "agent": str(agent.get("state", "not told")) + (", in a turn" if agent.get("active_turn") else ""),
        "leftovers": str(observation.leftovers),
        "workspace": " ".join(filter(None, (str(facts.workspace), facts.workspace_reason))),
        "resumable": f"row {assessment.row}: {assessment.resume_reason}, {assessment.strategy or 'no strategy'}",
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
    return f"waits for its turn: {facts.before} before it{why}" if waits else "at once"


def _yes_or_no(value: bool) -> str:
    return "yes" if value else "no"


def _decision_summary(decision: Decision) -> str:
    parts = [
        f"executor {decision.executor_move}" if decision.executor_move else "",
        f"session {decision.session_move} {decision.session_error_code}".strip() if decision.session_move else "",
        f"agent {decision.agent_action} {decision.strategy or ''}".strip() if decision.agent_action != "none" else "",
        "interrupt the open run" if decision.interrupt_run else "",
        "end leftovers" if decision.end_leftovers else "",
        "look again" if decision.needs_recheck else "",
    ]
    return "; ".join(filter(None, parts)) or "nothing to do"

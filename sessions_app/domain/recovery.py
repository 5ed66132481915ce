"""Recovery, the pure half: facts and an observation in, a decision out (design, section 7).

One function for the sweep at boot, the loop and the command. Deciding again on one's own result
decides nothing new.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from executors_app.domain import Observation, Observed
from sessions_app.domain.recovery_facts import (
    FUTURE,
    OTHER_HOST,
    UNREACHABLE,
    WORKTREE_MISSING,
    Case,
    Decision,
    Policy,
    SweepFacts,
    wants_now,
)
from sessions_app.domain.recovery_rules import RULES, first_match

__all__ = [
    "FUTURE",
    "OTHER_HOST",
    "UNREACHABLE",
    "WORKTREE_MISSING",
    "Decision",
    "Policy",
    "SweepFacts",
    "decide",
    "explain",
    "postpone",
    "starts",
    "wants_now",
]

_NOT_OURS = frozenset({"foreign_lease", "attached", "start_under_way"})
"""Rules under which marked processes may be somebody's who is at work; a start ends leftovers itself."""

_SAYS = {rule.name: rule.says for rule in RULES}


def decide(facts: SweepFacts, observation: Observation, now: datetime) -> Decision:
    """What to do about one execution: the first rule that fits, and the end of what a dead one has left.

    ``facts`` are read before the look, so that a start that ends meanwhile is not taken for a lost agent.
    """
    _, decision = first_match(Case(facts, observation, now))
    leftovers = observation.observed is Observed.DEAD and observation.leftovers > 0
    return replace(decision, end_leftovers=leftovers and decision.rule not in _NOT_OURS)


def starts(decision: Decision) -> bool:
    """Whether the decision orders a start."""
    return decision.agent_action in ("resume", "start_workspace")


def postpone(facts: SweepFacts, observation: Observation, now: datetime, *, rank: int, reason: str) -> Decision:
    """What is decided in the place of a start that has to wait for its turn, at the place ``rank`` from now on."""
    waiting = decide(replace(facts, start_rank=rank, admitted=False), observation, now)
    return replace(waiting, start_rank=rank, wait_reason=reason, before=facts.before)


def explain(facts: SweepFacts, observation: Observation, decision: Decision) -> list[tuple[str, str]]:
    """``--explain``: label and value, in the order in which the rules ask."""
    report = observation.report
    agent = report["agent"] if report else {}
    assessment = facts.assessment.if_dead
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
        "prompts queued": _yes(facts.has_queued_prompts),
        "open run": _yes(facts.has_open_run),
        "start under way": _yes(facts.start_in_flight),
        "starts": f"{facts.attempts} of {facts.max_attempts}",
        "next start": facts.next_restart_at.isoformat() if facts.next_restart_at else _turn(facts, decision),
        "rule": f"{decision.rule}: {_SAYS[decision.rule]}",
        "decision": _in_short(decision),
    }
    return list(lines.items())


def _turn(facts: SweepFacts, decision: Decision) -> str:
    waits = decision.start_rank is not None or (facts.start_rank is not None and not facts.admitted)
    why = f" ({decision.wait_reason})" if decision.wait_reason else ""
    return f"waits for its turn: {facts.before} before it{why}" if waits else "at once"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _in_short(decision: Decision) -> str:
    parts = [
        f"executor {decision.executor_move}" if decision.executor_move else "",
        f"session {decision.session_move} {decision.session_error_code}".strip() if decision.session_move else "",
        f"agent {decision.agent_action} {decision.strategy or ''}".strip() if decision.agent_action != "none" else "",
        "interrupt the open run" if decision.interrupt_run else "",
        "end leftovers" if decision.end_leftovers else "",
        "look again" if decision.look_again else "",
    ]
    return "; ".join(filter(None, parts)) or "nothing to do"

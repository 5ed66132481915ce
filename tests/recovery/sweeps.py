"""Situations for the tests of sweeps, and the effect of decisions on them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from executors_app.wire.executions import ExecutorStatus, Observation, Observed, WorkspaceState
from executors_app.wire.protocol import AgentState
from scripts.documents.examples import DEAD, NOW, SWEEP, example_assessment, observed_alive
from sessions_app.kernel.rules.states import EXECUTOR, SESSION, SessionState
from sessions_app.recovery.rules.recovery import Decision, SweepFacts, decide
from sessions_app.recovery.rules.resumability import UNREACHABLE

STARTING = observed_alive(AgentState.STARTING)
NO_AGENT = observed_alive(AgentState.NONE)
LEFT_BEHIND = replace(DEAD, leftovers=2)
UNREACHABLE_ROW = replace(
    SWEEP,
    session_state=SessionState.ERROR,
    executor_status=ExecutorStatus.ERROR,
    executor_error_code=UNREACHABLE,
)
"""A row that ``unknown_boot`` has marked; the next answer restores it."""
GIVEN_UP = example_assessment(session_state=SessionState.FAILED)
GONE = {
    "workspace": WorkspaceState.GONE,
    "workspace_reason": "The branch was deleted.",
    "assessment": example_assessment(workspace=WorkspaceState.GONE),
}


def decision_for(observation: Observation, **changes: Any) -> Decision:
    """Return the decision about a session in mid-turn at boot, with changes."""
    return decide(replace(SWEEP, **changes), observation, NOW)


def apply_decision(facts: SweepFacts, observation: Observation, decision: Decision) -> tuple[SweepFacts, Observation]:
    """Return rows and observation after ``decision``; raise IllegalMove if a table has no such move."""
    changes: dict[str, Any] = {"unknown_before": observation.observed is Observed.UNKNOWN}
    if decision.executor_move:
        status = EXECUTOR.next_state(facts.executor_status or ExecutorStatus.STOPPED, decision.executor_move)
        code = decision.session_error_code if decision.executor_move == "fail" else ""
        changes |= {"executor_status": status, "executor_error_code": code, "asleep": False}
    if decision.session_move:
        changes["session_state"] = SESSION.next_state(facts.session_state, decision.session_move)
        if changes["session_state"] == SessionState.FAILED:
            changes["assessment"] = GIVEN_UP
    if decision.interrupt_run:
        changes["has_open_run"] = False
    if decision.end_leftovers:
        observation = replace(observation, leftovers=0)
    if decision.agent_action == "reattach":
        changes["attached"] = True
    elif decision.agent_action in ("resume", "start_workspace"):
        changes |= {"start_in_flight": True, "started_at": NOW}
    elif decision.agent_action == "stop":
        observation = DEAD
        changes |= {"attached": False, "has_open_run": False}
        if SESSION.allows(facts.session_state, "stop") and facts.session_state != SessionState.CREATED:
            changes["session_state"] = SESSION.next_state(facts.session_state, "stop")
    return replace(facts, **changes), observation

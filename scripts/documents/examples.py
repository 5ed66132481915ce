"""A session in every situation that a rule of recovery decides, for documents and tests."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from executors_app.wire.executions import ExecutorStatus, Observation, Observed, WorkspaceState
from executors_app.wire.protocol import AgentState
from sessions_app.kernel.rules.states import (
    DesiredState,
    SessionState,
    WorkState,
)
from sessions_app.recovery.rules.recovery import LEFT_UNREAD, OTHER_HOST, SweepFacts
from sessions_app.recovery.rules.resumability import Assessment, Policy, ResumeFacts, assess

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
RESUME = ResumeFacts(
    session_state=SessionState.WAITING_FOR_INPUT,
    task_archived=False,
    running=False,
    last_seen_at=None,
    known_dead=True,
    workspace=WorkspaceState.PRESENT,
    context_mismatch=False,
    ever_prompted=True,
    type_supports_resume=True,
    profile_supports_resume=None,
    probed_supports_resume=None,
    has_token=True,
    token_rejected=False,
    history_allowed=False,
    has_row=True,
    desired_state=DesiredState.RUNNING,
    stopped_by_user=False,
)
"""An idle session whose agent can resume its own conversation."""


def example_assessment(**changes: Any) -> Assessment:
    """Return the assessment of ``RESUME`` with changes, without its agent."""
    return assess(replace(RESUME, **{**changes, "running": False, "known_dead": True}), NOW)


LOST = example_assessment(type_supports_resume=False)
_WORKSPACE = {
    "has_agent": False,
    "assessment": example_assessment(has_agent=False),
    "session_state": SessionState.WAITING_FOR_INPUT,
    "has_open_run": False,
    "known_launch_id": None,
}
SWEEP = SweepFacts(
    session_id="session",
    task_id="task",
    runtime="local_standalone",
    session_state=SessionState.RUNNING,
    executor_status=ExecutorStatus.READY,
    executor_error_code="",
    desired_state=DesiredState.RUNNING,
    work_state=WorkState.WORKING,
    task_archived=False,
    task_closed=False,
    policy=Policy.AUTO,
    assessment=example_assessment(),
    workspace=WorkspaceState.PRESENT,
    workspace_reason="",
    has_open_run=True,
    has_queued_prompts=False,
    known_launch_id="launch",
    started_at=None,
    start_in_flight=False,
    foreign_lease=False,
    boot=True,
    unknown_before=False,
    asleep=False,
    attached=False,
    attempts=0,
    next_restart_at=None,
    owner_in_team=True,
)
"""A session in the middle of a turn, as its rows look to a sweep at boot."""


def observed_alive(state: AgentState | None, **more: Any) -> Observation:
    """Return an observation of an agentctl that answers, with an agent in ``state``; None: without a report."""
    agent = {"state": str(state), "active_turn": None, "launch_id": "launch"}
    return Observation(Observed.ALIVE, report={"agent": agent} if state else None, **more)


WORKING, IDLE, EXITED = (observed_alive(state) for state in (AgentState.WORKING, AgentState.IDLE, AgentState.EXITED))
DEAD = Observation(Observed.DEAD, reason="process_gone")
UNKNOWN = Observation(Observed.UNKNOWN, reason="timeout")


@dataclass(frozen=True, slots=True)
class Example:
    """One example; ``rule`` is the rule that it illustrates."""

    rule: str
    facts: SweepFacts
    observation: Observation


def _example(rule: str, observation: Observation, **changes: Any) -> Example:
    return Example(rule, replace(SWEEP, **changes), observation)


_ASLEEP = {
    "asleep": True,
    "executor_status": ExecutorStatus.STOPPED,
    "session_state": SessionState.WAITING_FOR_INPUT,
    "work_state": WorkState.IDLE,
    "has_open_run": False,
}
_LATER = NOW + timedelta(minutes=1)
EXAMPLES = (
    _example("foreign_lease", WORKING, foreign_lease=True),
    _example("other_host", Observation(Observed.UNKNOWN, reason=OTHER_HOST)),
    _example("attached", UNKNOWN, attached=True, boot=False),
    _example("alive_unwanted", WORKING, desired_state=DesiredState.STOPPED),
    _example("asleep_but_alive", IDLE, **_ASLEEP),
    _example("asleep", DEAD, **_ASLEEP),
    _example("start_under_way", DEAD, start_in_flight=True, started_at=NOW, executor_status=ExecutorStatus.STARTING),
    _example("unknown_stopped", UNKNOWN, executor_status=ExecutorStatus.STOPPED),
    _example("unread_unwanted", Observation.unknown(LEFT_UNREAD), desired_state=DesiredState.STOPPED),
    _example("unknown_boot", UNKNOWN),
    _example("unknown_again", UNKNOWN, boot=False, unknown_before=True),
    _example("unknown_first", UNKNOWN, boot=False),
    _example("alive_no_report", observed_alive(None)),
    _example("alive_workspace_session", observed_alive(AgentState.NONE), **_WORKSPACE),
    _example("alive_same_agent", IDLE),
    _example(
        "alive_workspace_only",
        observed_alive(AgentState.NONE),
        assessment=LOST,
        workspace_only=True,
        has_open_run=False,
    ),
    _example("alive_agent_gone_not_resumable", EXITED, assessment=LOST),
    _example("dead_unwanted", DEAD, desired_state=DesiredState.STOPPED),
    _example("owner_left", DEAD, owner_in_team=False),
    _example("gave_up", DEAD, attempts=5),
    _example("backing_off", DEAD, attempts=2, next_restart_at=_LATER),
    _example("waits_for_turn", DEAD, start_rank=4, before=3),
    _example("alive_agent_gone_resume_now", EXITED),
    _example("alive_agent_gone_resume_later", EXITED, policy=Policy.ON_OPEN),
    _example("dead_resume_now", DEAD),
    _example("dead_workspace_session", DEAD, **_WORKSPACE),
    _example("dead_not_resumable", DEAD, assessment=LOST),
    _example("dead_not_resumable_later", DEAD, assessment=LOST, policy=Policy.MANUAL),
    _example(
        "dead_workspace_gone",
        Observation(Observed.DEAD, workspace=WorkspaceState.GONE, workspace_reason="The branch was deleted."),
        workspace=WorkspaceState.GONE,
        assessment=example_assessment(workspace=WorkspaceState.GONE),
    ),
    _example("dead_resume_later", DEAD, policy=Policy.ON_OPEN),
)

_NO_TYPE = {"type_supports_resume": False, "has_token": False}
_REJECTED = {"has_token": False, "token_rejected": True}
RESUME_EXAMPLES: tuple[tuple[int, str, ResumeFacts], ...] = tuple(
    (row, words, replace(RESUME, **changes))
    for row, words, changes in (
        (1, "the agent runs", {"running": True, "known_dead": False}),
        (2, "seen within 30 s, not known dead", {"known_dead": False, "last_seen_at": NOW - timedelta(seconds=10)}),
        (3, "completed, cancelled, or the task archived", {"session_state": SessionState.COMPLETED}),
        (4, "given up", {"session_state": SessionState.FAILED}),
        (5, "the worktree is gone for good", {"workspace": WorkspaceState.GONE}),
        (6, "the last load contradicted the journal", {"context_mismatch": True}),
        (7, "never prompted", {"ever_prompted": False, "has_token": False}),
        (8, "native, token present", {}),
        (9, "no token, history allowed", _NO_TYPE | {"history_allowed": True}),
        (9, "token rejected, history allowed", _REJECTED | {"history_allowed": True}),
        (10, "token rejected, history not allowed", _REJECTED),
        (10, "token of another profile, type or directory", _REJECTED | {"token_strange": True}),
        (11, "native, no token", {"has_token": False}),
        (12, "neither", _NO_TYPE),
        (13, "a workspace that has no agent", {"has_agent": False, "ever_prompted": False, "has_token": False}),
        (8, "native, stopped by its user", {"desired_state": DesiredState.STOPPED, "stopped_by_user": True}),
    )
)
"""Row, condition in words, facts. The last one shows how a user's stop hides the row under it."""

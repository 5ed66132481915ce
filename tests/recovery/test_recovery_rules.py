"""Every row in the table of sweep rules, by its name."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from executors_app.wire.executions import ExecutorStatus as E
from executors_app.wire.executions import Observation, Observed, WorkspaceState
from scripts.documents.examples import (
    DEAD,
    EXITED,
    IDLE,
    LOST,
    NOW,
    RESUME,
    SWEEP,
    UNKNOWN,
    WORKING,
    example_assessment,
    observed_alive,
)
from sessions_app.kernel.rules.states import DesiredState, SessionState, WorkState
from sessions_app.recovery.rules.recovery import LEFT_UNREAD, Case, decide, explain_decision, is_start_decision
from sessions_app.recovery.rules.resumability import (
    UNREACHABLE,
    Assessment,
    Policy,
    Strategy,
    assess,
    policy_wants_agent,
)
from tests.recovery.sweeps import GIVEN_UP, GONE, LEFT_BEHIND, NO_AGENT, STARTING, UNREACHABLE_ROW, decision_for

S = SessionState
OTHER_HOST = Observation(Observed.UNKNOWN, reason="other_host")
UNREAD = Observation(Observed.UNKNOWN, reason=LEFT_UNREAD)
STOPPED = {"desired_state": DesiredState.STOPPED}
ASLEEP: dict[str, Any] = {
    "asleep": True,
    "executor_status": E.STOPPED,
    "session_state": S.WAITING_FOR_INPUT,
    "has_open_run": False,
}
REJECTED = example_assessment(has_token=False, token_rejected=True)
LONG_AGO, SOON = NOW - timedelta(minutes=6), NOW + timedelta(minutes=1)
BEGUN: dict[str, Any] = {"executor_status": E.STARTING, "session_state": S.STARTING, "has_open_run": False}
IN_FLIGHT: dict[str, Any] = BEGUN | {"start_in_flight": True, "started_at": NOW}
OVERDUE = IN_FLIGHT | {"started_at": LONG_AGO}
LOST_LATER = {"assessment": LOST, "policy": Policy.ON_OPEN}
LOST_AND_FAILING = {"assessment": LOST, "attempts": 1, "next_restart_at": SOON}
NO_TOKEN, MISMATCH = (
    {"assessment": example_assessment(has_token=False)},
    {"assessment": example_assessment(context_mismatch=True)},
)
BY_HAND = {"policy": Policy.MANUAL}
LOST_BY_HAND = {"assessment": LOST, **BY_HAND}
ALONE = {"workspace_only": True, "assessment": LOST}
WOKEN = {"workspace_only": True, "has_queued_prompts": True}
FAILED = {"session_state": S.FAILED, "assessment": GIVEN_UP, "has_open_run": False}

# observation, changes, rule, executor move, session move and code, agent action, open run interrupted
TABLE: list[tuple[Observation, dict[str, Any], str, str | None, str | None, str, bool]] = [
    (WORKING, {"foreign_lease": True}, "foreign_lease", None, None, "none", False),
    (DEAD, {"foreign_lease": True, **STOPPED}, "foreign_lease", None, None, "none", False),
    (OTHER_HOST, {}, "other_host", None, None, "none", False),
    (OTHER_HOST, {"boot": False, "unknown_before": True}, "other_host", None, None, "none", False),
    (UNKNOWN, {"attached": True}, "attached", None, None, "none", False),
    (DEAD, {"attached": True}, "attached", None, None, "none", False),
    (WORKING, STOPPED, "alive_unwanted", "stop", None, "stop", False),
    (WORKING, {"task_archived": True}, "alive_unwanted", "stop", None, "stop", False),
    (IDLE, {"task_closed": True}, "alive_unwanted", "stop", None, "stop", False),
    (EXITED, {"session_state": S.CANCELLED}, "alive_unwanted", "stop", None, "stop", False),
    (IDLE, {"start_in_flight": True, "started_at": NOW, **STOPPED}, "alive_unwanted", "stop", None, "stop", False),
    (IDLE, ASLEEP, "asleep_but_alive", None, None, "stop", False),
    (DEAD, ASLEEP, "asleep", None, None, "none", False),
    (DEAD, ASLEEP | STOPPED, "dead_unwanted", None, None, "none", False),
    (IDLE, ASLEEP | {"start_in_flight": True}, "alive_same_agent", "launch", None, "reattach", False),
    (UNKNOWN, ASLEEP, "asleep", None, None, "none", False),
    (DEAD, ASLEEP | {"has_queued_prompts": True}, "dead_resume_now", "launch", "start", "resume", False),
    (WORKING, ASLEEP, "alive_same_agent", "launch", "turn_started", "reattach", False),
    (DEAD, IN_FLIGHT, "start_under_way", None, None, "none", False),
    (DEAD, IN_FLIGHT | STOPPED, "dead_unwanted", "stop", "interrupt", "none", False),
    (NO_AGENT, IN_FLIGHT, "start_under_way", None, None, "none", False),
    (DEAD, BEGUN | {"boot": False, "started_at": NOW}, "start_under_way", None, None, "none", False),
    (DEAD, OVERDUE, "dead_resume_now", "launch", "start", "resume", False),
    (DEAD, BEGUN | {"started_at": NOW}, "dead_resume_now", "launch", "start", "resume", False),
    (STARTING, IN_FLIGHT, "alive_same_agent", "ready", None, "reattach", False),
    (UNKNOWN, {"executor_status": E.STOPPED}, "unknown_stopped", None, None, "none", False),
    (UNKNOWN, {"executor_status": None}, "unknown_stopped", None, None, "none", False),
    (UNREAD, STOPPED, "unread_unwanted", None, None, "none", False),
    (UNREAD, {}, "unknown_boot", "fail", "fail unreachable", "none", False),
    (UNKNOWN, {}, "unknown_boot", "fail", "fail unreachable", "none", False),
    (UNKNOWN, STOPPED, "unknown_boot", "fail", "fail unreachable", "none", False),
    (UNKNOWN, {"session_state": S.COMPLETED}, "unknown_boot", "fail", None, "none", False),
    (UNKNOWN, {"boot": False}, "unknown_first", None, None, "none", False),
    (UNKNOWN, {"boot": False, "unknown_before": True}, "unknown_again", "fail", "fail unreachable", "none", False),
    (observed_alive(None), {}, "alive_no_report", None, None, "reattach", False),
    (WORKING, {}, "alive_same_agent", None, None, "reattach", False),
    (IDLE, {}, "alive_same_agent", None, "ready", "reattach", False),
    (IDLE, {"attached": True, "boot": False}, "alive_same_agent", None, None, "none", False),
    (IDLE, {"session_state": S.ERROR}, "alive_same_agent", None, None, "reattach", False),
    (WORKING, {"session_state": S.ERROR}, "alive_same_agent", None, "turn_started", "reattach", False),
    (WORKING, FAILED, "alive_same_agent", None, None, "reattach", False),
    (EXITED, {"assessment": LOST}, "alive_agent_gone_not_resumable", None, "fail not_resumable", "none", True),
    (NO_AGENT, LOST_LATER, "alive_agent_gone_not_resumable", None, "fail not_resumable", "none", True),
    (NO_AGENT, ALONE, "alive_workspace_only", None, "interrupt", "none", True),
    (NO_AGENT, ALONE | GONE, "alive_agent_gone_not_resumable", None, "fail worktree_missing", "none", True),
    (NO_AGENT, ALONE | WOKEN, "alive_agent_gone_not_resumable", None, "fail not_resumable", "none", True),
    (EXITED, NO_TOKEN, "alive_agent_gone_not_resumable", None, "fail not_resumable", "none", True),
    (EXITED, MISMATCH, "alive_agent_gone_not_resumable", None, "fail context_mismatch", "none", True),
    (EXITED, GONE, "alive_agent_gone_not_resumable", None, "fail worktree_missing", "none", True),
    (EXITED, {}, "alive_agent_gone_resume_now", None, "start", "resume", True),
    (EXITED, {"executor_status": E.STARTING}, "alive_agent_gone_resume_now", "ready", "start", "resume", True),
    (EXITED, {"policy": Policy.WORKING}, "alive_agent_gone_resume_now", None, "start", "resume", True),
    (EXITED, {"policy": Policy.ON_OPEN}, "alive_agent_gone_resume_later", None, "interrupt", "none", True),
    (EXITED, {"assessment": REJECTED}, "alive_agent_gone_resume_later", None, "interrupt", "none", True),
    (EXITED, {"workspace_only": True}, "alive_agent_gone_resume_later", None, "interrupt", "none", True),
    (EXITED, WOKEN, "alive_agent_gone_resume_now", None, "start", "resume", True),
    (EXITED, {"attempts": 5}, "gave_up", None, "give_up gave_up", "none", True),
    (EXITED, {"attempts": 1, "next_restart_at": SOON}, "backing_off", None, "interrupt", "none", True),
    (EXITED, {"owner_in_team": False}, "owner_left", None, "interrupt", "none", True),
    (DEAD, {}, "dead_resume_now", "launch", "start", "resume", True),
    (DEAD, {"executor_status": None, "session_state": S.CREATED}, "dead_resume_now", "launch", "start", "resume", True),
    (DEAD, {"workspace": WorkspaceState.REBUILDABLE}, "dead_resume_now", "launch", "start", "resume", True),
    (DEAD, {"attempts": 1, "next_restart_at": LONG_AGO}, "dead_resume_now", "launch", "start", "resume", True),
    (DEAD, {"assessment": LOST}, "dead_not_resumable", "launch", "fail not_resumable", "start_workspace", True),
    (DEAD, LOST_BY_HAND, "dead_not_resumable_later", "stop", "fail not_resumable", "none", True),
    (DEAD, LOST_LATER, "dead_not_resumable_later", "stop", "fail not_resumable", "none", True),
    (DEAD, LOST_LATER | {"boot": False}, "dead_not_resumable_later", "stop", "fail not_resumable", "none", True),
    (DEAD, MISMATCH | BY_HAND, "dead_not_resumable_later", "stop", "fail context_mismatch", "none", True),
    (DEAD, ALONE, "dead_workspace_session", "launch", "interrupt", "start_workspace", True),
    (DEAD, ALONE | BY_HAND, "dead_resume_later", "stop", "interrupt", "none", True),
    (DEAD, LOST_AND_FAILING, "backing_off", "stop", "interrupt", "none", True),
    (DEAD, {"assessment": LOST, "attempts": 5}, "gave_up", "stop", "give_up gave_up", "none", True),
    (DEAD, STOPPED, "dead_unwanted", "stop", "interrupt", "none", True),
    (DEAD, STOPPED | {"assessment": LOST}, "dead_unwanted", "stop", "interrupt", "none", True),
    (DEAD, STOPPED | GONE, "dead_unwanted", "stop", "interrupt", "none", True),
    (DEAD, {"session_state": S.COMPLETED, "has_open_run": False}, "dead_unwanted", "stop", None, "none", False),
    (DEAD, {"policy": Policy.ON_OPEN}, "dead_resume_later", "stop", "interrupt", "none", True),
    (DEAD, {"policy": Policy.ON_OPEN, **GONE}, "dead_resume_later", "stop", "interrupt", "none", True),
    (DEAD, {"assessment": REJECTED}, "dead_resume_later", "stop", "interrupt", "none", True),
    (DEAD, FAILED, "dead_resume_later", "stop", None, "none", False),
    (DEAD, FAILED | {"assessment": LOST}, "dead_resume_later", "stop", None, "none", False),
    (DEAD, {"workspace": WorkspaceState.GONE}, "dead_workspace_gone", "fail", "fail worktree_missing", "none", True),
    (DEAD, GONE, "dead_workspace_gone", "fail", "fail worktree_missing", "none", True),
    (DEAD, {"owner_in_team": False}, "owner_left", "stop", "interrupt", "none", True),
    (DEAD, {"attempts": 5}, "gave_up", "stop", "give_up gave_up", "none", True),
    (DEAD, {"attempts": 2, "next_restart_at": SOON}, "backing_off", "stop", "interrupt", "none", True),
]  # fmt: skip


@pytest.mark.parametrize(
    ("observation", "changes", "rule", "executor", "session", "action", "interrupted"),
    TABLE,
    ids=[f"{line[2]}-{number}" for number, line in enumerate(TABLE)],
)
def test_situation_is_decided_by_its_rule(
    observation: Observation,
    changes: dict[str, Any],
    rule: str,
    executor: str | None,
    session: str | None,
    action: str,
    interrupted: bool,
) -> None:
    decision = decision_for(observation, **changes)
    moved = decision.session_move
    if moved in ("fail", "give_up"):
        moved = f"{moved} {decision.session_error_code}"
    outcome = (decision.rule, decision.executor_move, moved, decision.agent_action, decision.interrupt_run)
    assert outcome == (rule, executor, session, action, interrupted)


@pytest.mark.parametrize(
    ("observation", "session"),
    [(WORKING, "turn_started"), (IDLE, "ready"), (STARTING, "start"), (EXITED, "start"), (DEAD, "start")],
)
def test_unreachable_session_is_restored_by_the_next_answer(observation: Observation, session: str) -> None:
    decision = decide(UNREACHABLE_ROW, observation, NOW)
    assert decision.session_move == session
    assert decision.executor_move == ("launch" if observation is DEAD else "ready")


def test_reopened_stream_does_not_keep_a_session_unreachable() -> None:
    assert decide(replace(UNREACHABLE_ROW, attached=True), IDLE, NOW).session_move == "ready"


def test_unwanted_unreachable_session_waits_for_its_user() -> None:
    decision = decide(replace(UNREACHABLE_ROW, policy=Policy.MANUAL), DEAD, NOW)
    assert (decision.executor_move, decision.session_move) == ("stop", "interrupt")


def test_silent_unreachable_session_is_not_decided_again() -> None:
    decision = decide(replace(UNREACHABLE_ROW, boot=False), UNKNOWN, NOW)
    assert decision.rule == "unknown_again"
    assert decision.is_noop
    assert decision.needs_recheck


def test_silence_replaces_another_error_by_unreachable() -> None:
    decision = decision_for(
        UNKNOWN, session_state=S.ERROR, executor_status=E.ERROR, executor_error_code="launch_failed"
    )
    assert (decision.executor_move, decision.session_move) == ("fail", "fail")
    assert decision.session_error_code == UNREACHABLE


@pytest.mark.parametrize("changes", [{}, STOPPED, {"policy": Policy.MANUAL}, {"assessment": LOST}, ASLEEP, GONE])
def test_leftover_processes_are_ended_under_every_policy(changes: dict[str, Any]) -> None:
    assert decision_for(LEFT_BEHIND, **changes).end_leftovers


@pytest.mark.parametrize(
    "changes", [{"foreign_lease": True}, {"attached": True}, {"start_in_flight": True, "started_at": NOW}]
)
def test_processes_in_use_are_not_leftovers(changes: dict[str, Any]) -> None:
    assert not decision_for(LEFT_BEHIND, **changes).end_leftovers


@pytest.mark.parametrize(
    ("assessment", "strategy"),
    [
        (example_assessment(), Strategy.NATIVE),
        (example_assessment(ever_prompted=False), Strategy.FRESH),
        (example_assessment(type_supports_resume=False, history_allowed=True), Strategy.HISTORY),
    ],
)
def test_resume_uses_the_strategy_of_the_assessment(assessment: Assessment, strategy: Strategy) -> None:
    assert decision_for(DEAD, assessment=assessment).strategy == strategy


def test_assessment_of_running_agent_holds_after_its_death() -> None:
    running = assess(replace(RESUME, running=True), NOW)
    assert decision_for(DEAD, assessment=running).strategy == Strategy.NATIVE


def test_missing_worktree_is_reported_with_its_reason() -> None:
    gone = replace(DEAD, workspace=WorkspaceState.GONE, workspace_reason="The repository was moved.")
    assert decision_for(gone, **GONE).error_message == "The repository was moved."


@pytest.mark.parametrize(
    ("policy", "work", "queued", "boot", "now"),
    [
        (Policy.AUTO, WorkState.IDLE, False, True, True),
        (Policy.AUTO, WorkState.DONE, False, False, True),
        (Policy.WORKING, WorkState.WORKING, False, True, True),
        (Policy.WORKING, WorkState.IDLE, False, True, False),
        (Policy.WORKING, WorkState.IDLE, True, True, True),
        (Policy.ON_OPEN, WorkState.WORKING, False, True, False),
        (Policy.ON_OPEN, WorkState.IDLE, True, True, True),
        (Policy.MANUAL, WorkState.WORKING, False, False, False),
        (Policy.MANUAL, WorkState.IDLE, True, True, False),
        (Policy.MANUAL, WorkState.IDLE, True, False, True),
    ],
)
def test_policy_decides_when_to_resume(policy: Policy, work: WorkState, queued: bool, boot: bool, now: bool) -> None:
    assert policy_wants_agent(policy, work, queued, boot) is now


def test_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="sometimes"):
        policy_wants_agent("sometimes", WorkState.IDLE, has_queued_prompts=False, boot=True)


def test_explanation_names_the_rule_and_its_consequences() -> None:
    decision = decision_for(LEFT_BEHIND)
    lines = dict(explain_decision(SWEEP, LEFT_BEHIND, decision))
    assert lines["rule"].startswith("dead_resume_now: ")
    assert lines["observed"] == "dead process_gone"
    assert lines["resumable"] == "row 8: agent_not_running, native"
    assert lines["decision"] == (
        "executor launch; session start; agent resume native; interrupt the open run; end leftovers"
    )


@pytest.mark.parametrize(
    ("changes", "creates_start"),
    [({}, True), ({"assessment": LOST}, True), (STOPPED, False), (BY_HAND, False), ({"attempts": 5}, False)],
    ids=["resume", "workspace alone", "stopped", "by hand", "given up"],
)
def test_start_is_created_for_an_agent_or_a_workspace(changes: dict[str, Any], creates_start: bool) -> None:
    assert is_start_decision(decision_for(DEAD, **changes)) is creates_start


@pytest.mark.parametrize(
    ("policy", "starts"), [(Policy.AUTO, True), (Policy.WORKING, True), (Policy.ON_OPEN, True), (Policy.MANUAL, False)]
)
def test_workspace_without_an_agent_starts_unless_its_policy_is_manual(policy: Policy, starts: bool) -> None:
    facts = replace(SWEEP, has_agent=False, policy=policy, work_state=WorkState.IDLE, boot=False)
    assert Case(facts, DEAD, NOW).does_policy_start is starts


def test_agent_of_a_later_launch_is_distinguished() -> None:
    assert "later launch" in decision_for(WORKING, known_launch_id="an earlier one").reason
    assert "later launch" not in decision_for(WORKING, known_launch_id="launch").reason

"""Properties of every decision, over all situations of the core and a seeded sample of the rest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import product
from random import Random
from typing import Any

import pytest

from executors_app.wire.executions import ExecutorStatus as E
from executors_app.wire.executions import Observation, Observed, WorkspaceState
from scripts.documents.examples import (
    DEAD,
    EXAMPLES,
    EXITED,
    IDLE,
    LOST,
    NOW,
    SWEEP,
    UNKNOWN,
    WORKING,
    Example,
    example_assessment,
    observed_alive,
)
from sessions_app.kernel.rules.states import TERMINAL_STATES, DesiredState, SessionState, WorkState
from sessions_app.recovery.rules.recovery import RULES, Decision, SweepFacts, decide
from sessions_app.recovery.rules.resumability import UNREACHABLE, Assessment, Policy
from tests.recovery.sweeps import GIVEN_UP, LEFT_BEHIND, NO_AGENT, STARTING, apply_decision

OBSERVATIONS = (
    WORKING,
    IDLE,
    STARTING,
    EXITED,
    NO_AGENT,
    observed_alive(None),
    DEAD,
    LEFT_BEHIND,
    UNKNOWN,
    Observation(Observed.UNKNOWN, reason="other_host"),
)
EXECUTORS = ((None, ""), *((status, "") for status in E), (E.ERROR, UNREACHABLE), (E.ERROR, "launch_failed"))
ASSESSMENTS = (
    example_assessment(),
    LOST,
    example_assessment(workspace=WorkspaceState.GONE),
    example_assessment(context_mismatch=True),
    example_assessment(ever_prompted=False),
    example_assessment(type_supports_resume=False, history_allowed=True),
    example_assessment(has_token=False, token_rejected=True),
)
Situation = tuple[SweepFacts, Observation]


def _facts(state: SessionState, executor: tuple[E | None, str], assessment: Assessment) -> SweepFacts:
    gone = assessment.row == 5
    if state in TERMINAL_STATES:
        assessment = example_assessment(session_state=state)
    elif state == SessionState.FAILED:
        assessment = GIVEN_UP
    return replace(
        SWEEP,
        session_state=state,
        executor_status=executor[0],
        executor_error_code=executor[1],
        assessment=assessment,
        workspace=WorkspaceState.GONE if gone else WorkspaceState.PRESENT,
    )


def _core() -> Iterator[Situation]:
    for state, executor, assessment, look in product(SessionState, EXECUTORS, ASSESSMENTS, OBSERVATIONS):
        yield _facts(state, executor, assessment), look


def _drawn(number: int = 4000) -> Iterator[Situation]:
    draw = Random(7)
    for _ in range(number):
        facts = _facts(draw.choice(list(SessionState)), draw.choice(EXECUTORS), draw.choice(ASSESSMENTS))
        flags: dict[str, Any] = {
            name: draw.random() < 0.3
            for name in (
                "task_archived",
                "task_closed",
                "has_open_run",
                "has_queued_prompts",
                "start_in_flight",
                "foreign_lease",
                "boot",
                "unknown_before",
                "attached",
                "owner_in_team",
                "workspace_only",
            )
        }
        yield (
            replace(
                facts,
                **flags,
                policy=draw.choice(list(Policy)),
                desired_state=draw.choice(list(DesiredState)),
                work_state=draw.choice(list(WorkState)),
                attempts=draw.choice((0, 2, 5)),
                asleep=facts.executor_status == E.STOPPED and draw.random() < 0.3,
                started_at=draw.choice((None, NOW, NOW - timedelta(hours=1))),
                next_restart_at=draw.choice((None, NOW - timedelta(hours=1), NOW + timedelta(hours=1))),
            ),
            draw.choice(OBSERVATIONS),
        )


def decide_repeatedly(facts: SweepFacts, look: Observation, decision: Decision, sweeps: int) -> Decision:
    """Return the decision after ``sweeps`` more sweeps, each carried out."""
    for _ in range(sweeps):
        facts, look = apply_decision(facts, look, decision)
        decision = decide(facts, look, NOW)
    return decision


@pytest.fixture(scope="module")
def decided() -> list[tuple[SweepFacts, Observation, Decision]]:
    return [(facts, look, decide(facts, look, NOW)) for facts, look in (*_core(), *_drawn())]


Decided = list[tuple[SweepFacts, Observation, Decision]]


def test_every_move_is_in_the_table_of_its_machine(decided: Decided) -> None:
    for facts, look, decision in decided:
        apply_decision(facts, look, decision)


def test_unknown_execution_is_never_treated_as_dead(decided: Decided) -> None:
    for _, look, decision in decided:
        if look.observed is Observed.UNKNOWN:
            assert decision.agent_action == "none", decision
            assert not (decision.interrupt_run or decision.end_leftovers), decision
            assert decision.executor_move in (None, "fail"), decision
            assert decision.session_move in (None, "fail"), decision


def test_nothing_is_written_under_a_foreign_lease(decided: Decided) -> None:
    for facts, look, decision in decided:
        if facts.foreign_lease or look.reason == "other_host":
            assert decision.is_noop, decision


def test_live_agent_is_stopped_only_on_request_or_for_sleep(decided: Decided) -> None:
    for facts, _, decision in decided:
        if decision.agent_action == "stop":
            is_at_rest = facts.desired_state == DesiredState.STOPPED or facts.session_state in TERMINAL_STATES
            assert is_at_rest or facts.task_archived or facts.task_closed or facts.asleep, decision


def test_no_second_agent_starts_beside_a_live_one(decided: Decided) -> None:
    for facts, look, decision in decided:
        if look in (WORKING, IDLE, STARTING) or (facts.attached and look.observed is not Observed.ALIVE):
            assert decision.agent_action not in ("resume", "start_workspace"), decision
            assert not decision.interrupt_run, decision


def test_every_resume_has_a_strategy_and_a_desired_state(decided: Decided) -> None:
    for facts, _, decision in decided:
        if decision.agent_action == "resume":
            assert decision.strategy, decision
            assert facts.desired_state == DesiredState.RUNNING
            assert facts.owner_in_team
            assert facts.attempts < facts.max_attempts
            assert facts.session_state not in TERMINAL_STATES | {SessionState.FAILED}


def test_every_error_has_a_code_and_a_message(decided: Decided) -> None:
    for _, _, decision in decided:
        if "fail" in (decision.executor_move, decision.session_move) or decision.session_move == "give_up":
            assert decision.session_error_code, decision
            assert decision.error_message, decision


def test_second_sweep_decides_nothing_new(decided: Decided) -> None:
    for facts, look, first in decided:
        passes_through_starting = look.observed is Observed.ALIVE and facts.executor_status in (None, E.STOPPED)
        if first.needs_recheck or passes_through_starting or facts.session_state == SessionState.CREATED:
            continue
        facts_after, look_after = apply_decision(facts, look, first)
        second = decide(facts_after, look_after, NOW)
        assert second.is_noop, (first, second)


def test_every_situation_is_stable_after_three_sweeps(decided: Decided) -> None:
    for facts, look, decision in decided:
        last = decide_repeatedly(facts, look, decision, sweeps=3)
        assert last.is_noop, (facts, look, decision, last)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.rule)
def test_each_documented_example_shows_its_rule(example: Example) -> None:
    assert decide(example.facts, example.observation, NOW).rule == example.rule


def test_every_rule_has_its_example_in_the_order_of_the_rules() -> None:
    assert [example.rule for example in EXAMPLES] == [rule.name for rule in RULES]

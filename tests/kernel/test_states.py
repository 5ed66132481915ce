"""The state machines: every move is in its table, and the documents are generated from the tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from executors_app.wire.executions import ExecutorStatus as E
from scripts.documents.states import state_diagram
from sessions_app.kernel.rules.states import (
    EXECUTOR,
    MACHINES,
    PROMPT,
    RUN,
    SESSION,
    TERMINAL_STATES,
    WORK,
    IllegalMove,
    Machine,
    PromptState,
    RunState,
    SessionState,
    TaskState,
    WorkState,
    task_state,
)

S, T, W = SessionState, TaskState, WorkState
DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize(
    ("machine", "state", "move"),
    [
        (SESSION, S.COMPLETED, "start"),
        (SESSION, S.CANCELLED, "turn_started"),
        (SESSION, S.FAILED, "ready"),
        (EXECUTOR, "stopped", "ready"),
        (PROMPT, PromptState.HELD, "send"),
        (PROMPT, PromptState.INTERRUPTED, "send"),
        (PROMPT, PromptState.DONE, "deliver"),
        (PROMPT, PromptState.ACCEPTED, "withdraw"),
        (RUN, RunState.INTERRUPTED, "complete"),
    ],
)
def test_move_outside_the_table_is_refused(machine: Machine, state: str, move: str) -> None:
    assert not machine.allows(state, move)
    with pytest.raises(IllegalMove, match=move):
        machine.next_state(state, move)


LIVE = {S.STARTING, S.RUNNING, S.WAITING_FOR_INPUT, S.ERROR}


@pytest.mark.parametrize(
    ("machine", "move", "sources"),
    [
        (SESSION, "start", LIVE | {S.CREATED, S.FAILED}),
        (SESSION, "ready", LIVE),
        (SESSION, "turn_started", LIVE),
        (SESSION, "turn_ended", LIVE),
        (SESSION, "fail", LIVE | {S.CREATED}),
        (EXECUTOR, "ready", {E.STARTING, E.READY, E.ERROR}),
        (WORK, "begin", {W.IDLE, W.WORKING, W.DONE}),
        (WORK, "rest", {W.IDLE, W.WORKING}),
        (RUN, "interrupt", {RunState.RUNNING, RunState.WAITING}),
    ],
)
def test_move_leaves_these_states_alone(machine: Machine, move: str, sources: set[str]) -> None:
    every_state = {state for kind in (S, E, W, RunState) for state in kind}
    assert {state for state in every_state if machine.allows(state, move)} == sources


@pytest.mark.parametrize("state", sorted(TERMINAL_STATES))
def test_terminal_session_stays_terminal(state: SessionState) -> None:
    assert not [move for move in SESSION.moves if SESSION.allows(state, move)]


def test_failed_session_can_be_started_or_closed() -> None:
    assert {move for move in SESSION.moves if SESSION.allows(S.FAILED, move)} == {"start", "complete", "cancel"}


def test_prompt_that_an_agent_may_have_is_never_resent() -> None:
    assert {state for state in PromptState if PROMPT.allows(state, "send")} == {PromptState.QUEUED, PromptState.SENDING}


@pytest.mark.parametrize(
    ("current", "sessions", "after"),
    [
        (T.TODO, [], T.TODO),
        (T.TODO, [S.CREATED], T.TODO),
        (T.TODO, [S.STARTING, S.ERROR], T.IN_PROGRESS),
        (T.REVIEW, [S.RUNNING], T.IN_PROGRESS),
        (T.IN_PROGRESS, [S.WAITING_FOR_INPUT, S.FAILED], T.REVIEW),
        (T.IN_PROGRESS, [S.ERROR], T.REVIEW),
        (T.REVIEW, [S.FAILED, S.FAILED], T.FAILED),
        (T.IN_PROGRESS, [S.COMPLETED], T.REVIEW),
        (T.REVIEW, [S.FAILED, S.COMPLETED], T.REVIEW),
        (T.REVIEW, [S.CANCELLED], T.TODO),
        (T.REVIEW, [S.COMPLETED, S.STARTING], T.IN_PROGRESS),
        (T.DONE, [S.RUNNING], T.DONE),
        (T.CANCELLED, [S.FAILED], T.CANCELLED),
    ],
)
def test_task_state_follows_from_its_sessions(
    current: TaskState, sessions: list[SessionState], after: TaskState
) -> None:
    assert task_state(current, sessions) is after


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_diagram_shows_every_move_of_its_machine(machine: Machine) -> None:
    lines = state_diagram(machine).splitlines()
    for source, move, target in machine.edges():
        arrow = next(line for line in lines if line.strip().startswith(f"{source} --> {target}: "))
        assert move in arrow.split(": ")[1].split(", ")

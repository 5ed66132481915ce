"""Which columns of the board a person can move a task to, and what others answer."""

from __future__ import annotations

import pytest

from sessions_app.board.rules.moves import (
    COLUMN_NAMES,
    MOVE_CHOICES,
    MOVE_HINTS,
    MovableTask,
    Move,
    possible_moves,
    why_not,
)
from sessions_app.kernel.rules.states import TaskState

T = TaskState
ENDING = {T.DONE: Move.DONE, T.CANCELLED: Move.CANCEL}
MOVES: dict[tuple[TaskState, TaskState, bool], dict[TaskState, Move]] = {
    (T.TODO, T.TODO, True): {T.IN_PROGRESS: Move.START, **ENDING},
    (T.TODO, T.TODO, False): ENDING,
    (T.IN_PROGRESS, T.IN_PROGRESS, False): ENDING,
    (T.REVIEW, T.REVIEW, False): ENDING,
    (T.FAILED, T.FAILED, False): ENDING,
    (T.DONE, T.REVIEW, False): {T.REVIEW: Move.REOPEN},
    (T.DONE, T.TODO, True): {T.TODO: Move.REOPEN},
    (T.CANCELLED, T.FAILED, False): {T.FAILED: Move.REOPEN},
}


@pytest.mark.parametrize(("state", "reopens_to", "may_start"), MOVES)
def test_only_ends_first_starts_and_reopening_are_moves(
    state: TaskState, reopens_to: TaskState, may_start: bool
) -> None:
    task = MovableTask(state, reopens_to, may_start)
    assert possible_moves(task) == MOVES[state, reopens_to, may_start]


@pytest.mark.parametrize(("state", "reopens_to", "may_start"), MOVES)
def test_every_other_column_has_a_reason(state: TaskState, reopens_to: TaskState, may_start: bool) -> None:
    task = MovableTask(state, reopens_to, may_start)
    for target in set(TaskState) - set(possible_moves(task)):
        assert why_not(task, target).endswith(".")


def test_choices_are_all_possible_moves_once() -> None:
    tasks = [MovableTask(state, after, may_start) for state in T for after in T for may_start in (True, False)]
    open_states = {T.TODO, T.IN_PROGRESS, T.REVIEW, T.FAILED}
    possible = {pair for task in tasks if task.reopens_to in open_states for pair in possible_moves(task).items()}
    assert len(set(MOVE_CHOICES)) == len(MOVE_CHOICES)
    assert set(MOVE_CHOICES) == possible
    assert set(COLUMN_NAMES) == set(TaskState)
    assert set(MOVE_HINTS) == set(Move)

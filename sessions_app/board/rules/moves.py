"""Moves of a task between the columns of the board: which of them a person may choose, and why not the others (pure).

A column is a state of tasks. Three states and FAILED follow from a task's sessions; only DONE and CANCELLED are set by
people. So a person can end a task, reopen it, or start the first agent on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sessions_app.kernel.rules.states import TaskState


class Move(StrEnum):
    """What moves a task to another column."""

    START = "start"
    DONE = "done"
    CANCEL = "cancel"
    REOPEN = "reopen"


COLUMN_NAMES: Final[Mapping[TaskState, str]] = {
    TaskState.TODO: "To do",
    TaskState.IN_PROGRESS: "In progress",
    TaskState.REVIEW: "Review",
    TaskState.DONE: "Done",
    TaskState.FAILED: "Failed",
    TaskState.CANCELLED: "Cancelled",
}
MOVE_HINTS: Final[Mapping[Move, str]] = {
    Move.START: "Starts an agent on it.",
    Move.DONE: "Stops its sessions and keeps their branches.",
    Move.CANCEL: "Stops its sessions and keeps their branches.",
    Move.REOPEN: "Reopens it. Its sessions stay stopped.",
}
MOVE_CHOICES: Final = (
    (TaskState.IN_PROGRESS, Move.START),
    *((state, Move.REOPEN) for state in (TaskState.TODO, TaskState.IN_PROGRESS, TaskState.REVIEW, TaskState.FAILED)),
    (TaskState.DONE, Move.DONE),
    (TaskState.CANCELLED, Move.CANCEL),
)
"""All moves, in the order of the columns."""
_ENDS: Final = frozenset({TaskState.DONE, TaskState.CANCELLED})
_FOLLOWS: Final[Mapping[TaskState, str]] = {
    TaskState.TODO: "A task is to do as long as no session has worked on it.",
    TaskState.IN_PROGRESS: "A task is in progress while an agent works on it. Send a prompt to one of its sessions.",
    TaskState.REVIEW: "A task is in review when its agent has finished a turn or needs you.",
    TaskState.FAILED: "A task has failed when all its sessions have.",
}


@dataclass(frozen=True, slots=True)
class MovableTask:
    """What decides where a task can be moved."""

    state: TaskState
    reopens_to: TaskState
    """The state that follows from its sessions alone."""
    may_start: bool
    """Whether it has a repository, and no session yet."""


def possible_moves(task: MovableTask) -> dict[TaskState, Move]:
    """Return the columns that a person can move a task to, and how."""
    if task.state in _ENDS:
        return {task.reopens_to: Move.REOPEN}
    moves = {TaskState.DONE: Move.DONE, TaskState.CANCELLED: Move.CANCEL}
    if task.state == TaskState.TODO and task.may_start:
        return {TaskState.IN_PROGRESS: Move.START, **moves}
    return moves


def why_not(task: MovableTask, target: TaskState) -> str:
    """Return why a person cannot move a task to a column that is not among ``possible_moves``."""
    name = COLUMN_NAMES[task.state]
    if target == task.state:
        return f"This task is already in “{name}”."
    if task.state not in _ENDS:
        return _FOLLOWS[target]
    if target in _ENDS:
        return f"This task is {name.lower()}. Reopen it first."
    return f"Reopened, this task is in “{COLUMN_NAMES[task.reopens_to]}”: its state follows from its sessions."


def moved_sentence(move: Move, title: str, target: TaskState) -> str:
    """Return what a move has done."""
    sentences = {
        Move.START: f"An agent is starting on “{title}”. It is in progress once the agent runs.",
        Move.DONE: f"“{title}” is done.",
        Move.CANCEL: f"“{title}” is cancelled.",
        Move.REOPEN: f"“{title}” is reopened and in “{COLUMN_NAMES[target]}”.",
    }
    return sentences[move]

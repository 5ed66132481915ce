"""Move tasks between the columns of the board, each only from the column in which its user saw it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from django.contrib.auth.models import User
from django.db.transaction import atomic

from sessions_app.board.rules.moves import COLUMN_NAMES, MovableTask, Move, possible_moves, why_not
from sessions_app.board.services.tasks import cancel_task, create_session_with_defaults, finish_task, reopen_task
from sessions_app.kernel.rules.states import TaskState, task_state
from sessions_app.kernel.services.errors import Conflict, NotFound, TerminalState
from sessions_app.models import Task


def movable(task: Task, session_states: Iterable[str]) -> MovableTask:
    """Return what decides where a task can be moved; ``session_states`` are those of its sessions."""
    states = list(session_states)
    return MovableTask(
        state=TaskState(task.state),
        reopens_to=task_state(TaskState.TODO, states),
        may_start=task.repository_id is not None and not states,
    )


def find_move(task: Task, shown: TaskState, target: TaskState) -> Move:
    """Return what moves a task from the column in which it was shown to ``target``.

    Raises Conflict, with the reason, if it is in another column by now or cannot be moved there, and TerminalState for
    an archived task.
    """
    if task.archived_at is not None:
        raise TerminalState.of_task("archived")
    if task.state != shown:
        raise Conflict(f"This task is in “{COLUMN_NAMES[TaskState(task.state)]}” by now. Nothing was changed.")
    found = movable(task, task.sessions.order_by().values_list("state", flat=True))
    move = possible_moves(found).get(target)
    if move is None:
        raise Conflict(why_not(found, target))
    return move


def move_task(user: User, task: Task, shown: TaskState, target: TaskState) -> Move:
    """Move a task, and return how; nothing changes unless it is where it was shown. Raises what ``find_move`` raises.

    Raises NotFound for a task that was deleted meanwhile. A start raises what ``create_session_with_defaults`` raises.
    """
    with atomic():
        # First its sessions, then the task, like everyone: from here on, both stay as they are compared.
        list(task.sessions.select_for_update(no_key=True).order_by("id").values_list("id"))
        row = Task.objects.select_for_update(no_key=True).filter(id=task.id).first()
        if row is None:
            raise NotFound  # it was deleted meanwhile
        move = find_move(row, shown, target)
        _CARRY_OUT[move](user, row)
    return move


def _start(user: User, task: Task) -> None:
    create_session_with_defaults(user, task)


_CARRY_OUT: Final[Mapping[Move, Callable[[User, Task], object]]] = {
    Move.START: _start,
    Move.DONE: lambda user, task: finish_task(task, user),
    Move.CANCEL: lambda user, task: cancel_task(task, user),
    Move.REOPEN: lambda user, task: reopen_task(task, user),
}

"""Mark many tasks as done, or archive them: each by itself, and only what was seen."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.contrib.auth.models import User
from django.db import DatabaseError

from sessions_app.accounts.authorization import writable_teams
from sessions_app.board.services.tasks import archive_task, finish_task, visible_tasks
from sessions_app.finish.unfinished import TimeLimit, UnfinishedTask, unfinished_work
from sessions_app.kernel.services.errors import Invalid, NotFound, ReadOnly, SessionsError, WorkUnfinished
from sessions_app.models import Task
from sessions_app.sessions.services.intents import UNEXPECTED_ERROR

MAX_TASKS: Final = 50
"""Tasks of one request."""
_SECONDS: Final = 15.0
"""How long workspaces and git are asked for all tasks together; what others leave is unknown."""
ACTIONS: Final[Mapping[str, Callable[[Task, Any], Task]]] = {"done": finish_task, "archive": archive_task}
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """The result for one task; an empty ``code`` means that it was changed."""

    task_id: uuid.UUID
    task: Task | None
    """None: the user can see no such task."""
    left: UnfinishedTask | None = None
    """What it leaves, if somebody has looked."""
    code: str = ""
    message: str = ""

    @property
    def ok(self) -> bool:
        """Whether the task was changed."""
        return not self.code

    @property
    def is_unfinished(self) -> bool:
        """Whether it was kept because it leaves something."""
        return self.code == WorkUnfinished.code


def change_tasks(user: User, action: str, ids: Sequence[uuid.UUID], *, confirmed: bool) -> list[TaskOutcome]:
    """Carry out one of ``ACTIONS`` for each task, in the order of ``ids``; a failure stops no other.

    Unless it is ``confirmed``, a task that leaves uncommitted or unmerged work, or may, stays as it is. Raises Invalid
    for an unknown action, and for none or more than ``MAX_TASKS`` tasks.
    """
    return [_change(user, action, choice) for choice in _choose(user, action, ids, confirmed=confirmed)]


def preview_tasks(user: User, action: str, ids: Sequence[uuid.UUID]) -> list[TaskOutcome]:
    """Return what ``change_tasks`` would keep as it is without a confirmation, and why. Changes nothing."""
    return _choose(user, action, ids, confirmed=False)


def _choose(user: User, action: str, ids: Sequence[uuid.UUID], *, confirmed: bool) -> list[TaskOutcome]:
    """Return an outcome for each wanted task, with the code of why it stays as it is."""
    if action not in ACTIONS:
        raise Invalid(f"action must be one of {', '.join(ACTIONS)}.", field="action")
    wanted = list(dict.fromkeys(ids))
    if not wanted or len(wanted) > MAX_TASKS:
        raise Invalid(f"Choose 1 to {MAX_TASKS} tasks.", field="tasks")
    found = {task.id: task for task in visible_tasks(user).filter(id__in=wanted)}
    writable = set(writable_teams(user).values_list("id", flat=True))
    limit = TimeLimit(_SECONDS, sure_sessions=0)
    return [_look_at(task_id, found.get(task_id), writable, None if confirmed else limit) for task_id in wanted]


def _look_at(task_id: uuid.UUID, task: Task | None, writable: set[int], limit: TimeLimit | None) -> TaskOutcome:
    """Check one task; with a ``limit``, also what it leaves."""
    if task is None:
        return TaskOutcome(task_id, None, code=NotFound.code, message=NotFound().message)
    if task.team_id not in writable:
        return TaskOutcome(task_id, task, code=ReadOnly.code, message=ReadOnly().message)
    if limit is None:
        return TaskOutcome(task_id, task)
    left = unfinished_work(task, limit)
    if left.is_something:
        return TaskOutcome(task_id, task, left, WorkUnfinished.code, WorkUnfinished().message)
    return TaskOutcome(task_id, task, left)


def _change(user: User, action: str, choice: TaskOutcome) -> TaskOutcome:
    if choice.task is None or not choice.ok:
        return choice
    try:
        ACTIONS[action](choice.task, user)
    except SessionsError as error:
        return TaskOutcome(choice.task_id, choice.task, choice.left, error.code, error.message)
    except DatabaseError:
        raise  # the next task would meet it too, so the whole request fails
    except Exception:  # one bad row never stops the rest
        log.exception("task %s: %s failed", choice.task_id, action)
        message = "Something went wrong for this task. The server log has the details."
        return TaskOutcome(choice.task_id, choice.task, choice.left, UNEXPECTED_ERROR, message)
    return choice

"""Find the objects of a request: those of other teams respond with 404, and a viewer's write with 403."""

from __future__ import annotations

import uuid

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from django.shortcuts import get_object_or_404

from sessions_app.accounts.authorization import may_write
from sessions_app.models import Task, TaskSession
from sessions_app.services.catalogue import visible_sessions, visible_tasks

READ_METHODS = ("GET", "HEAD", "OPTIONS")


def find_task(request: HttpRequest, task_id: uuid.UUID) -> Task:
    """Return a task of the user's teams. Raises Http404 for any other, and PermissionDenied if a viewer writes."""
    found: Task = get_object_or_404(visible_tasks(request.user), id=task_id)
    _require_write_access(request, found)
    return found


def find_session(request: HttpRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> TaskSession:
    """Return a session of this task, if the user may see it. Raises what ``find_task`` raises."""
    found: TaskSession = get_object_or_404(visible_sessions(request.user).filter(task_id=task_id), id=session_id)
    _require_write_access(request, found.task)
    return found


def _require_write_access(request: HttpRequest, task: Task) -> None:
    if request.method not in READ_METHODS and not may_write(request.user, task.team_id):
        raise PermissionDenied

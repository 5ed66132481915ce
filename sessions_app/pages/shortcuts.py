"""What a request may have: anything of another team is a 404, a viewer's write a 403 (rule 39)."""

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
    """A task of the user's teams; Http404 for any other, PermissionDenied where a viewer wants to change it."""
    found: Task = get_object_or_404(visible_tasks(request.user), id=task_id)
    _require_write_access(request, found)
    return found


def find_session(request: HttpRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> TaskSession:
    """A session of this task and of the user's teams; refuses as ``find_task`` does."""
    found: TaskSession = get_object_or_404(visible_sessions(request.user).filter(task_id=task_id), id=session_id)
    _require_write_access(request, found.task)
    return found


def _require_write_access(request: HttpRequest, task: Task) -> None:
    if request.method not in READ_METHODS and not may_write(request.user, task.team_id):
        raise PermissionDenied

"""What a user may see; anything else is a 404, as if it were not there."""

from __future__ import annotations

import uuid
from typing import Any

from django.shortcuts import get_object_or_404

from sessions_app.models import Task, TaskSession
from sessions_app.services.catalogue import visible_sessions, visible_tasks


def find_task(user: Any, task_id: uuid.UUID) -> Task:
    """A task of the user's teams; Http404 for any other."""
    found: Task = get_object_or_404(visible_tasks(user), id=task_id)
    return found


def find_session(user: Any, task_id: uuid.UUID, session_id: uuid.UUID) -> TaskSession:
    """A session of this task and of the user's teams; Http404 for any other."""
    found: TaskSession = get_object_or_404(visible_sessions(user).filter(task_id=task_id), id=session_id)
    return found

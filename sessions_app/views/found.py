"""What a user may see; anything else is a 404, as if it were not there."""

from __future__ import annotations

import uuid
from typing import Any

from django.db.models import Q, QuerySet
from django.shortcuts import get_object_or_404

from executors_app.models import AgentProfile
from sessions_app.models import Task, TaskSession


def find_task(user: Any, task_id: uuid.UUID) -> Task:
    """A task of the user's teams; Http404 for any other."""
    found: Task = get_object_or_404(Task.objects.visible_to(user).select_related("repository", "team"), id=task_id)
    return found


def find_session(user: Any, task_id: uuid.UUID, session_id: uuid.UUID) -> TaskSession:
    """A session of this task and of the user's teams; Http404 for any other."""
    rows = TaskSession.objects.visible_to(user).filter(task_id=task_id)
    rows = rows.select_related("task__repository", "task__team", "agent_profile", "executor", "owner")
    found: TaskSession = get_object_or_404(rows, id=session_id)
    return found


def profiles_of(user: Any) -> QuerySet[AgentProfile]:
    """The agent profiles that the user may start: the shared ones and those of the user's teams."""
    return AgentProfile.objects.filter(Q(team=None) | Q(team__in=user.groups.all()))

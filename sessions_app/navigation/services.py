"""The sessions and tasks that a user moves between: the newest ones, and those that match what was typed.

Each list is bounded and takes a constant number of queries.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from django.contrib.auth.models import User
from django.db.models import Q, QuerySet

from sessions_app.board.services.board import annotate_needs, session_rows
from sessions_app.kernel.rules.states import TaskState
from sessions_app.models import Task, TaskSession
from sessions_app.sessions.rules.situation_facts import Label
from sessions_app.sessions.rules.situations import status_label
from sessions_app.sessions.services.queries import SECRET_FIELDS

MAX_FOUND: Final = 8
"""Tasks and sessions that the palette shows of each."""
MAX_QUERY: Final = 200
"""Characters of a query that are used."""
NEWEST_TASKS: Final = 30
"""Tasks whose sessions are offered before anything is typed."""
_OVER: Final = (TaskState.DONE, TaskState.CANCELLED)


@dataclass(frozen=True, slots=True)
class ListedSession:
    """A session with the label of its status."""

    session: TaskSession
    label: Label


def find_tasks(user: User, text: str) -> list[Task]:
    """Return the newest tasks of the user's teams whose title contains ``text``; those that are archived too."""
    tasks = Task.objects.visible_to(user).select_related("team").defer("description")
    found = tasks.filter(title__icontains=text[:MAX_QUERY]).order_by("-created_at", "id")
    return list(found[:MAX_FOUND])


def find_sessions(user: User, text: str) -> list[ListedSession]:
    """Return the newest sessions whose task, agent or branch contains ``text``; without one, those not over."""
    sessions = TaskSession.objects.visible_to(user)
    if not text:
        return describe_sessions(_newest_ids(sessions, user)[:MAX_FOUND], user)
    words = text[:MAX_QUERY]
    named = Q(task__title__icontains=words) | Q(agent_profile__name__icontains=words)
    matching = sessions.filter(named | Q(worktree_branch__icontains=words)).order_by("-created_at", "id")
    return describe_sessions(list(matching.values_list("id", flat=True)[:MAX_FOUND]), user)


def _newest_ids(sessions: QuerySet[TaskSession], user: User) -> list[uuid.UUID]:
    """Return the ids of the sessions of the newest tasks that are not over, the newest first.

    The tasks first, which the database reads from an index in this order.
    """
    tasks = Task.objects.visible_to(user).filter(archived_at=None).exclude(state__in=_OVER)
    newest = list(tasks.order_by("-created_at", "id").values_list("id", flat=True)[:NEWEST_TASKS])
    of_tasks = sessions.filter(task__in=newest).order_by("-created_at", "id")
    return list(of_tasks.values_list("id", flat=True)[:NEWEST_TASKS])


def describe_sessions(ids: Sequence[uuid.UUID], user: User) -> list[ListedSession]:
    """Return the sessions with these ids in their order, with their labels; a constant number of queries."""
    rows = TaskSession.objects.filter(id__in=ids).select_related("task", "agent_profile")
    sessions = {each.id: each for each in annotate_needs(rows.defer("task__description", *SECRET_FIELDS), user)}
    described = session_rows(list(sessions.values()))
    return [ListedSession(sessions[each], status_label(described[each].facts)) for each in ids if each in sessions]

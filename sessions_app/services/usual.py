"""What somebody usually chooses: the agent, the place and the repository of the session that they made last."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from executors_app.models import Executor
from sessions_app.models import Task, TaskSession
from sessions_app.services.catalogue import profiles_for
from sessions_app.services.errors import Invalid
from sessions_app.services.tasks import create_session


@dataclass(frozen=True, slots=True)
class Choice:
    """Ids of rows, as a form takes them; None: nothing was chosen yet."""

    profile: uuid.UUID | None = None
    executor: uuid.UUID | None = None
    repository: uuid.UUID | None = None


def usual_choice(user: Any) -> Choice:
    """What ``user`` chose last among what is still theirs to see; one query."""
    rows = TaskSession.objects.visible_to(user).filter(owner=user).order_by("-created_at")
    last = rows.values_list("agent_profile_id", "executor_id", "task__repository_id").first()
    return Choice(*last) if last else Choice()


def start_as_usual(user: Any, task: Task) -> TaskSession:
    """A session on ``task`` with the usual agent and place, or the first there are; its description is the prompt.

    Raises Invalid where there is no agent or no place, and as ``create_session``.
    """
    usual = usual_choice(user)
    profiles, places = profiles_for(task), Executor.objects.all()
    profile = (profiles.filter(id=usual.profile).first() if usual.profile else None) or profiles.first()
    place = (places.filter(id=usual.executor).first() if usual.executor else None) or places.first()
    if profile is None or place is None:
        raise Invalid("There is no agent profile or no executor yet. Staff can add them.")
    return create_session(user, task, profile, place, prompt=task.description if task.description.strip() else "")

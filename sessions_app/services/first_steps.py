"""The first steps of somebody who looks at Kandev on a machine of their own, until a restart has been survived."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sessions_app.models import ContinuityReceipt, Run, Task, TaskSession
from sessions_app.services.restarting import last_ordered, may_restart

DEMO_TASK: Final = "Survive a restart"
"""The title of the demo's task whose agent works long enough."""


@dataclass(frozen=True, slots=True)
class FirstSteps:
    """How far somebody is."""

    task: Task
    session: TaskSession | None
    """The newest on the task; None: it was not started."""
    works: bool
    """Its agent is in a turn."""
    has_worked: bool
    restarted: bool


def first_steps(user: Any) -> FirstSteps | None:
    """None where the control plane cannot be restarted from the pages, and for whoever has seen what comes of it."""
    if not may_restart(user):
        return None
    task = Task.objects.visible_to(user).filter(archived_at=None, title=DEMO_TASK).order_by("created_at").first()
    if task is None or _has_seen(user):
        return None
    session = task.sessions.order_by("-created_at").first()
    runs = Run.objects.filter(session=session) if session else Run.objects.none()
    last = last_ordered()
    return FirstSteps(
        task=task,
        session=session,
        works=runs.filter(ended_at=None).exists(),
        has_worked=runs.exists(),
        restarted=last is not None and last.killed_at >= task.created_at,
    )


def _has_seen(user: Any) -> bool:
    return ContinuityReceipt.objects.visible_to(user).filter(kind="reattached").exists() and last_ordered() is not None

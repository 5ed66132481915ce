"""The sessions that a user can see, with what pages, API and programs show of them."""

from __future__ import annotations

from typing import Final

from django.contrib.auth.models import User
from django.db.models import OuterRef, QuerySet, Subquery, Value
from django.db.models.functions import Coalesce

from executors_app.models import PROFILE_SECRETS, ExecutorRunning
from executors_app.wire.executions import ExecutorStatus
from sessions_app.models import TaskSession
from sessions_app.recovery.services.assessment import effective_policy_expression

SECRET_FIELDS: Final = tuple(f"agent_profile__{name}" for name in PROFILE_SECRETS)
"""Fields of a session's profile that no list of sessions reads."""


def visible_sessions(user: User) -> QuerySet[TaskSession]:
    """Return the sessions of the user's teams with task, profile and executor.

    Adds ``executor_status`` and ``held_policy``, the policy in effect.
    """
    status = ExecutorRunning.objects.filter(id=OuterRef("agent_execution_id")).values("status")
    found: QuerySet[TaskSession] = TaskSession.objects.visible_to(user).select_related(
        "task__repository", "agent_profile", "executor"
    )
    return found.defer(*SECRET_FIELDS).annotate(
        executor_status=Coalesce(Subquery(status), Value(ExecutorStatus.STOPPED.value)),
        held_policy=effective_policy_expression(),
    )

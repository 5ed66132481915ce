"""What a member of a team has begun there and what runs with the member's rights, for those who take these away."""

from __future__ import annotations

from dataclasses import dataclass

from django.contrib.auth.models import Group, User

from sessions_app.accounts.models import ApiToken
from sessions_app.finish.models import FinishIntent
from sessions_app.kernel.rules.states import ENDED_STATES, DesiredState
from sessions_app.models import Prompt, TaskPlan, TaskSession, WaitKey
from sessions_app.notifications.models import Webhook
from sessions_app.workflows.models import Workflow, WorkflowRun


@dataclass(frozen=True, slots=True)
class Belongings:
    """How much of a team is a member's, by what happens to it when the member leaves."""

    running_sessions: int
    """They go on, but are not started again by themselves."""
    queued_prompts: int
    """They are sent: they have the rights that their user had when they were written."""
    schedules: int
    """Workflows that start with the member's rights. They are paused when they are due next."""
    workflow_runs: int
    """They fail at their next script or prompt."""
    waits: int
    """Their keys are refused. A member of the team can request new ones."""
    webhooks: int
    """Of the team. They are switched off, because only admins may have them."""
    merges: int
    """Merges and pushes that are not carried out yet. They are refused."""
    assigned_tasks: int
    tokens: int
    """They stay valid for the member's other teams."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing in the team is the member's."""
        return not any(getattr(self, name) for name in self.__slots__ if name != "tokens")


def find_belongings(team: Group, user: User) -> Belongings:
    """Count what is a member's in a team; one query for each kind."""
    sessions = TaskSession.objects.filter(task__team=team)
    open_keys = WaitKey.objects.filter(session__task__team=team, consumed_at=None, revoked_at=None, expired_at=None)
    return Belongings(
        running_sessions=sessions.filter(owner=user, desired_state=DesiredState.RUNNING)
        .exclude(state__in=ENDED_STATES)
        .count(),
        queued_prompts=Prompt.objects.filter(session__task__team=team, by=user, state="queued").count(),
        schedules=Workflow.objects.filter(
            team=team, triggers_enabled=True, triggers_enabled_by=user, archived_at=None
        ).count(),
        workflow_runs=WorkflowRun.objects.filter(team=team, started_by=user, state__in=("queued", "running")).count(),
        waits=open_keys.filter(by=user).count(),
        webhooks=Webhook.objects.filter(team=team, created_by=user, enabled=True).count(),
        merges=FinishIntent.objects.pending().filter(session__task__team=team, by=user).count(),
        assigned_tasks=TaskPlan.objects.filter(task__team=team, task__archived_at=None, assignee=user).count(),
        tokens=ApiToken.objects.live().filter(user=user).count(),
    )

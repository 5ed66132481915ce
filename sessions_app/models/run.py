"""One turn or wait of a session: started, maybe waiting, ended once."""

from __future__ import annotations

import uuid

from django.db import models

from executors_app.json_fields import ListField, ObjectField
from sessions_app.domain.states import RunState
from sessions_app.models.scoping import TeamModel
from sessions_app.models.session import TaskSession


class Run(TeamModel):
    """One turn; begins with its prompt's ``prompt.accepted`` and ends exactly once."""

    team_path = "session__task__team"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    session = models.ForeignKey(TaskSession, models.CASCADE, related_name="runs")
    message_id = models.CharField(max_length=128)
    state = models.CharField(max_length=12, choices=[(s.value, s.value) for s in RunState], default=RunState.RUNNING)
    has_process = models.BooleanField(default=True)
    """An agent process owns it; a wait for the outside has none until the agent has accepted what came of it."""
    wait_kind = models.CharField(max_length=16, blank=True, default="")
    wait_id = models.CharField(max_length=128, blank=True, default="")
    """Of the newest wait: a permission's id, or that of a wait for the outside."""
    wait_reason = models.TextField(blank=True, default="")
    deadline_at = models.DateTimeField(null=True, blank=True)
    """When the newest wait ends by itself; None: never."""
    waited = models.BooleanField(default=False)
    """It was waiting when it ended, so that an interruption is told from a wait's."""
    reason = models.CharField(max_length=64, blank=True, default="")
    since_seq = models.BigIntegerField(default=0)
    """The line of the log that says that it waits."""
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta(TeamModel.Meta):
        abstract = False
        db_table = "session_runs"
        ordering = ("started_at", "id")
        constraints = (
            models.UniqueConstraint(
                fields=("session",),
                condition=models.Q(state__in=["running", "waiting"]),
                name="one_open_run_per_session",
            ),
        )

    def __str__(self) -> str:
        return f"run {str(self.id)[:8]} ({self.state})"


class PermissionRequest(TeamModel):
    """A question an agent asked before acting; open in agentctl until answered or cancelled."""

    team_path = "session__task__team"
    STATES = ("pending", "resolved", "cancelled", "expired")

    id = models.CharField(primary_key=True, max_length=64)
    """Minted by agentctl, unique for ever (rule 10)."""
    session = models.ForeignKey(TaskSession, models.CASCADE, related_name="permissions")
    run = models.ForeignKey(Run, models.CASCADE, null=True, blank=True, related_name="permissions")
    tool_call = ObjectField(default=dict)
    options = ListField(default=list)
    state = models.CharField(max_length=10, choices=[(s, s) for s in STATES], default="pending")
    option_id = models.CharField(max_length=128, blank=True, default="")
    requested_at = models.DateTimeField()
    settled_at = models.DateTimeField(null=True, blank=True)

    class Meta(TeamModel.Meta):
        abstract = False
        db_table = "session_permissions"
        ordering = ("requested_at", "id")
        indexes = (models.Index(fields=("session", "state"), name="permission_open"),)

    def __str__(self) -> str:
        return f"permission {self.id[:8]} ({self.state})"

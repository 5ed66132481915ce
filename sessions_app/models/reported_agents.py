"""What agents reported about themselves when they were last started, by team, executor and agent type."""

from __future__ import annotations

from django.db import models

from executors_app.orm import ListField
from sessions_app.accounts.team_scope import TeamModel


class ReportedAgent(TeamModel):
    """The last report of a team's agent of one type on one executor.

    It belongs to a team because a team's own profile may run a program of its own.
    """

    team = models.ForeignKey("auth.Group", models.CASCADE, related_name="+")
    executor = models.ForeignKey("executors_app.Executor", models.CASCADE, related_name="+")
    agent_type = models.CharField(max_length=64)
    name = models.CharField(max_length=200, blank=True, default="")
    version = models.CharField(max_length=200, blank=True, default="")
    """Empty: it reported none."""
    auth_methods = ListField(default=list, blank=True)
    """Its ways to log in, as ``executors_app.agentctl.auth_methods`` describes them."""
    logs_out = models.BooleanField(default=False)
    """Whether it offers to log out."""
    seen_at = models.DateTimeField()

    class Meta(TeamModel.Meta):
        abstract = False
        db_table = "reported_agents"
        ordering = ("seen_at",)
        constraints = (
            models.UniqueConstraint(fields=("team", "executor", "agent_type"), name="one_report_per_team_and_place"),
        )

    def __str__(self) -> str:
        return f"{self.agent_type} {self.version}".strip()

"""The MCP servers that a team or a repository gives to the agents of its sessions."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from executors_app.orm import ListField
from sessions_app.accounts.team_scope import TeamModel
from sessions_app.models.session import Repository


class McpServerList(TeamModel):
    """The MCP servers of a team, or of one repository of the team.

    Without secrets: ``executors_app.mcp_servers`` describes how a server refers to one. Only staff and the team's
    admins write it; nothing that a repository contains does.
    """

    team = models.ForeignKey("auth.Group", models.CASCADE, related_name="mcp_server_lists")
    repository = models.OneToOneField(Repository, models.CASCADE, null=True, blank=True, related_name="mcp_server_list")
    """None: the list applies to all sessions of the team."""
    servers = ListField(default=list, blank=True)
    updated_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+", editable=False
    )
    updated_at = models.DateTimeField(auto_now=True)

    class Meta(TeamModel.Meta):
        abstract = False
        db_table = "mcp_server_lists"
        verbose_name = "MCP server list"
        ordering = ("team__name", "repository__name")
        constraints = (
            models.UniqueConstraint(
                fields=("team",), condition=models.Q(repository=None), name="one_mcp_server_list_per_team"
            ),
        )

    def __str__(self) -> str:
        return f"MCP servers of {self.repository or self.team}"

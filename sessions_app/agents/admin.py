"""Admin pages of what agents report and of MCP servers."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.core.exceptions import ValidationError
from django.http import HttpRequest

from executors_app.staff_admin import Form, ReadOnlyModelAdmin, StaffModelAdmin
from sessions_app.agents.services.mcp_servers import check_server_list
from sessions_app.kernel.admin import SessionRowAdmin
from sessions_app.models import (
    AgentSettings,
    AgentTestResult,
    McpServerList,
    ReportedAgent,
)


@admin.register(AgentSettings)
class AgentSettingsAdmin(SessionRowAdmin):
    """What agents report about themselves, and the settings that users chose for them."""

    list_display = ("updated_at", "session", "task", "title", "settings_at", "commands_at")
    list_filter = (("settings_at", admin.EmptyFieldListFilter),)
    search_fields = ("title", *SessionRowAdmin.search_fields)
    date_hierarchy = "updated_at"
    ordering = ("-updated_at",)


@admin.register(ReportedAgent)
class ReportedAgentAdmin(ReadOnlyModelAdmin):
    """The name and version that the agents of a team last reported on each executor."""

    list_display = ("seen_at", "team", "executor", "agent_type", "name", "version")
    list_select_related = ("team", "executor")
    list_filter = ("agent_type",)
    search_fields = ("agent_type", "name", "team__name", "executor__name")
    date_hierarchy = "seen_at"
    ordering = ("-seen_at",)


@admin.register(AgentTestResult)
class AgentTestResultAdmin(ReadOnlyModelAdmin):
    """What the last test of each agent profile on each executor has shown."""

    list_display = ("started_at", "team", "executor", "profile", "agent_type", "state", "error_code", "worked_at")
    list_select_related = ("team", "executor", "profile")
    list_filter = ("agent_type", "state", "error_code")
    search_fields = ("agent_type", "error", "team__name", "executor__name")
    date_hierarchy = "started_at"
    ordering = ("-started_at",)


class McpServerListForm(Form):
    """A list of MCP servers, with references in place of secrets."""

    class Meta:
        model = McpServerList
        fields = ("team", "repository", "servers")

    def clean_servers(self) -> list[dict[str, Any]]:
        """Return the servers. Raises ValidationError."""
        servers: list[dict[str, Any]] = self.cleaned_data["servers"] or []
        check_server_list(servers)
        return servers

    def clean(self) -> dict[str, Any]:
        """Check that a repository belongs to the team."""
        values: dict[str, Any] = super().clean() or {}
        repository, team = values.get("repository"), values.get("team")
        if repository is not None and team is not None and repository.team_id != team.pk:
            raise ValidationError({"repository": "This repository belongs to another team."})
        return values


@admin.register(McpServerList)
class McpServerListAdmin(StaffModelAdmin):
    """MCP servers that teams and repositories give to agents."""

    form = McpServerListForm
    list_display = ("team", "repository", "names", "updated_by", "updated_at")
    list_filter = ("team",)
    list_select_related = ("team", "repository", "updated_by")
    search_fields = ("team__name", "repository__name")
    date_hierarchy = "updated_at"
    fields = ("team", "repository", "servers")

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        """Keep team and repository of an existing list."""
        if obj:
            return ("team", "repository")
        return ()

    @admin.display(description="servers")
    def names(self, row: McpServerList) -> str:
        """Return the names of the servers."""
        return ", ".join(str(server.get("name", "?")) for server in row.servers) or "–"

    def save_model(self, request: HttpRequest, obj: McpServerList, form: Any, change: bool) -> None:
        """Record who changed the list."""
        obj.updated_by_id = request.user.pk
        super().save_model(request, obj, form, change)

    def written(self, form: Form) -> set[str]:
        """Return the changed fields, and who changed them."""
        return {*super().written(form), "updated_by"}

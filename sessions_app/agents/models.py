"""What agents report about themselves, the settings that users chose for them, and the MCP servers they are given."""

from __future__ import annotations

from typing import Any, Final

from django.conf import settings
from django.db import models

from executors_app.orm import ListField, ObjectField
from executors_app.wire.agent_settings import TITLE_LIMIT
from sessions_app.accounts.team_scope import TeamModel
from sessions_app.agents.events import SettingApplied, SettingRefused
from sessions_app.catalogue.models import Repository
from sessions_app.kernel.models.session import TaskSession
from sessions_app.kernel.transactions import SessionTransaction

WAITING: Final = "waiting"
APPLIED: Final = "applied"
REFUSED: Final = "refused"
KEPT: Final = "kept-"
"""Before the id of a change whose value a start applies again."""


class AgentSettings(TeamModel):
    """One row for each session whose agent reported settings, commands, a title or ways to log in.

    It is written in transactions of its session only, whose row is the lock. Each report is stored with the time of
    its journal line, so that an older one that arrives later changes nothing.
    """

    team_path = "session__task__team"

    session = models.OneToOneField(TaskSession, models.CASCADE, primary_key=True, related_name="agent_settings")
    settings = ListField(default=list, blank=True)
    """As ``executors_app.wire.agent_settings`` describes them."""
    settings_at = models.DateTimeField(null=True, blank=True)
    commands = ListField(default=list, blank=True)
    commands_at = models.DateTimeField(null=True, blank=True)
    title = models.CharField(max_length=TITLE_LIMIT, blank=True, default="")
    """The agent's own title of the conversation: text for people, never a name of anything."""
    title_at = models.DateTimeField(null=True, blank=True)
    auth_methods = ListField(default=list, blank=True)
    """Its ways to log in, as it published them at its last start: no other session's page offers them."""
    logs_out = models.BooleanField(default=False)
    """Whether it offers to log out."""
    auth_at = models.DateTimeField(null=True, blank=True)
    chosen = ObjectField(default=dict, blank=True)
    """By id of the setting: ``{"value", "change"}``.

    ``value`` is what a user chose and the agent accepted, which every start applies again; missing: nothing yet.
    ``change`` is the last change: ``{"id", "value", "state", "code", "reason", "by", "at"}``, where ``state`` is
    *waiting*, *applied* or *refused*.
    """
    updated_at = models.DateTimeField(auto_now=True)

    class Meta(TeamModel.Meta):
        db_table = "agent_settings"
        verbose_name_plural = "agent settings"

    def __str__(self) -> str:
        return f"settings of {str(self.session_id)[:8]}"

    def change_of(self, setting_id: str) -> dict[str, Any]:
        """Return the last change of a setting; empty if it was never changed."""
        change: dict[str, Any] = self.chosen.get(setting_id, {}).get("change", {})
        return change

    def choose(self, setting_id: str, **fields: Any) -> None:
        """Set ``value`` or ``change`` of a setting; the caller saves the row."""
        self.chosen = {**self.chosen, setting_id: {**self.chosen.get(setting_id, {}), **fields}}

    def changes_to_start_with(self) -> list[dict[str, Any]]:
        """Return what a start applies: the accepted choices, then the changes that still wait."""
        kept = [
            {"change_id": KEPT + choice["change"]["id"], "setting": name, "value": choice["value"]}
            for name, choice in self.chosen.items()
            if "value" in choice
        ]
        return kept + self.waiting_changes()

    def waiting_changes(self) -> list[dict[str, Any]]:
        """Return the changes whose outcome is not known, the oldest first."""
        waiting = [(name, choice["change"]) for name, choice in self.chosen.items()]
        waiting = sorted((each for each in waiting if each[1]["state"] == WAITING), key=lambda each: each[1]["at"])
        return [{"change_id": change["id"], "setting": name, "value": change["value"]} for name, change in waiting]


def agent_settings_of(session: TaskSession) -> AgentSettings | None:
    """Return the session's row; None if its agent has reported nothing yet."""
    return AgentSettings.objects.filter(session_id=session.pk).first()


def changes_to_start_with(session: TaskSession) -> list[dict[str, Any]]:
    """Return the changes that a start applies before the agent takes prompts, in order."""
    row = agent_settings_of(session)
    if row is None:
        return []
    return row.changes_to_start_with()


def settle_change(
    transaction: SessionTransaction,
    row: AgentSettings,
    setting_id: str,
    change_id: str,
    *,
    code: str = "",
    reason: str = "",
) -> bool:
    """Record that the agent applied a change, or refused it with ``code`` and ``reason``; the caller saves the row.

    Returns False and changes nothing for a change that is settled, or that a newer one has replaced.
    """
    change = row.change_of(setting_id)
    if change.get("id") != change_id or change.get("state") != WAITING:
        return False
    value = change["value"]
    if code:
        row.choose(setting_id, change={**change, "state": REFUSED, "code": code, "reason": reason})
        record_refusal(transaction, setting_id, change_id, value, code=code, reason=reason)
    else:
        row.choose(setting_id, change={**change, "state": APPLIED, "code": "", "reason": reason}, value=value)
        transaction.record_event(SettingApplied(change_id=change_id, setting=setting_id, value=value))
    return True


def record_refusal(
    transaction: SessionTransaction, setting_id: str, change_id: str, value: Any, *, code: str, reason: str
) -> None:
    """Record that the agent did not accept a value."""
    transaction.record_event(
        SettingRefused(change_id=change_id, setting=setting_id, value=value, code=code, reason=reason)
    )


class ReportedAgent(TeamModel):
    """Name and version that a team's agent of one type last reported on one executor: shown, and never acted on.

    It belongs to a team because a team's own profile may run a different program.
    """

    team = models.ForeignKey("auth.Group", models.CASCADE, related_name="+")
    executor = models.ForeignKey("executors_app.Executor", models.CASCADE, related_name="+")
    agent_type = models.CharField(max_length=64)
    name = models.CharField(max_length=200, blank=True, default="")
    version = models.CharField(max_length=200, blank=True, default="")
    """Empty: it reported none."""
    title = models.CharField(max_length=200, blank=True, default="", db_default="")
    """Its name for people; empty: it reported none."""
    seen_at = models.DateTimeField()

    class Meta(TeamModel.Meta):
        db_table = "reported_agents"
        ordering = ("seen_at",)
        constraints = (
            models.UniqueConstraint(fields=("team", "executor", "agent_type"), name="one_report_per_team_and_place"),
        )

    def __str__(self) -> str:
        return f"{self.agent_type} {self.version}".strip()


class AgentTestResult(TeamModel):
    """What the last test of a team's agent by one profile on one executor has shown; its session is deleted.

    Releases without this table delete teams, executors and profiles without looking at it, so the database does not
    enforce these references.
    """

    id = models.BigAutoField(primary_key=True)
    team = models.ForeignKey("auth.Group", models.CASCADE, related_name="+", db_constraint=False)
    executor = models.ForeignKey("executors_app.Executor", models.CASCADE, related_name="+", db_constraint=False)
    profile = models.ForeignKey(
        "executors_app.AgentProfile", models.CASCADE, null=True, blank=True, related_name="+", db_constraint=False
    )
    """Null: the test was deleted before this was recorded."""
    agent_type = models.CharField(max_length=64)
    started_at = models.DateTimeField()
    state = models.CharField(max_length=16)
    """*passed*, *failed* or *stopped*."""
    reply = models.TextField(blank=True, default="")
    """The beginning of what the agent said."""
    seconds = models.FloatField(null=True, blank=True)
    error = models.TextField(blank=True, default="")
    error_code = models.CharField(max_length=64, blank=True, default="")
    exit = models.CharField(max_length=200, blank=True, default="")
    """How the agent ended, in words; empty: it is not known to have ended."""
    worked_at = models.DateTimeField(null=True, blank=True)
    """When a test last completed its turn there, also an earlier one than the last."""
    login = ObjectField(default=dict, blank=True)
    """The login that the test carried, as ``agent_login.login_state`` returns it; empty: none."""
    auth_methods = ListField(default=list, blank=True)
    """Its ways to log in, as it published them in the test, and to nobody else."""
    logs_out = models.BooleanField(default=False)
    auth_at = models.DateTimeField(null=True, blank=True)

    class Meta(TeamModel.Meta):
        db_table = "agent_test_results"
        ordering = ("started_at",)
        constraints = (
            models.UniqueConstraint(fields=("team", "executor", "profile"), name="one_result_per_profile_and_place"),
        )

    def __str__(self) -> str:
        return f"{self.agent_type}: {self.state}"


class McpServerList(TeamModel):
    """The MCP servers of a team, or of one repository of the team.

    Without secrets: ``executors_app.mcp_servers`` describes how a server refers to one. Only staff and the team's
    admins write it; a repository's contents cannot change it.
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

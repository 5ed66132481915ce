"""Admin pages for agent profiles, agent capabilities and executions."""

from __future__ import annotations

import json
import shlex
from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse

from executors_app import plugins
from executors_app.agent_capabilities import capability_standing, explain_capability
from executors_app.agents import AgentType
from executors_app.encryption import SecretUnreadable
from executors_app.form_fields import HostsField, LinesField, SecretLines, VariablesField, WordsField
from executors_app.mcp_servers import ANY_PROGRAM, check_mcp_servers
from executors_app.models import AgentCapability, AgentProfile, ExecutorRunning, SecretKeyCheck
from executors_app.orm import JSONFormField
from executors_app.staff_admin import (
    UNREADABLE_TEXT,
    Form,
    ReadOnlyModelAdmin,
    RuntimeListFilter,
    StaffModelAdmin,
    describe_secret,
)

UNREADABLE_ENV = (
    "The stored variables cannot be decrypted with the current keys, so changing one would drop the others. Add the "
    "earlier secret key to KANDEV_SECRET_KEY_FALLBACKS, or replace all of them on the profile’s page in the settings."
)


def _agent_types() -> list[tuple[str, str]]:
    """Return the choices of a profile: installed agents first, the others with the command that installs them."""
    choices = []
    for kind, is_missing in plugins.listed_agent_types():
        title = kind.title
        if is_missing:
            title = f"{title} (not installed here: {kind.install})"
        choices.append((kind.name, title))
    return choices


def _key_help() -> str:
    """Return which variable logs in which agent."""
    kinds = [kind for kind, _missing in plugins.listed_agent_types() if kind.key]
    return "Keys of agents: " + ", ".join(f"{kind.title} {kind.key}" for kind in kinds) + "."


class AgentProfileForm(Form):
    """A profile form whose secrets can be set and removed, but not read."""

    agent_type = forms.ChoiceField(choices=_agent_types)
    command = WordsField(
        help_text="Program and arguments, as in a shell, but no shell runs it. Empty: the command of the agent type.",
    )
    args = WordsField(label="More arguments", help_text="After the command, as in a shell.")
    additional_directories = LinesField(
        label="More directories",
        help_text="Absolute paths outside the workspace that the agent may use, one per line.",
    )
    gone_patterns = LinesField(
        label="Errors that mean its conversation is gone",
        help_text="Regular expressions, one per line, in addition to those of the agent type.",
    )
    secret_hosts = HostsField(
        label="Secrets for MCP servers of teams",
        help_text="One variable per line with the hosts that may be given its value, such as DOCS_TOKEN: "
        f"docs.example, tools.example:8443. {ANY_PROGRAM!r} means any program. Servers of this profile get what they "
        "refer to.",
    )
    change_env = VariablesField(
        label="Set variables",
        help_text="One per line, as NAME=value; the others stay as they are. They are encrypted and never shown again.",
    )
    remove_env = WordsField(label="Remove variables", help_text="Their names, with spaces between them.")
    change_mcp_servers = JSONFormField(
        required=False,
        widget=SecretLines(rows=6),
        label="Replace the MCP servers",
        help_text='A JSON list of servers, such as [{"name": "docs", "url": "https://docs.example/mcp"}, {"name": '
        '"files", "command": "npx", "args": ["-y", "files-mcp"]}]; [] removes all. Empty: they stay as they are.',
    )

    class Meta:
        model = AgentProfile
        fields = "__all__"
        help_texts: ClassVar = {
            "team": "Empty: every team can use it. This cannot be changed later.",
            "model": "As the agent calls it. Empty: its own default.",
            "mode": "The mode that the agent starts in, as it calls it. Empty: its own default.",
            "permission_mode": "“Approve automatically” lets it do everything it asks for, without anybody looking.",
            "supports_session_resume": "Unknown: as the agent type declares.",
            "history_context_injection": "Whether a new conversation gets the history. Unknown: as the type declares.",
            "memory_check": "Test an agent that replays nothing with one short turn after each start.",
            "background_policy": "What happens to processes that the agent has left running when its session has been "
            "idle for long enough to sleep, unless the session has a choice of its own. Empty: as this installation.",
        }

    def clean(self) -> dict[str, Any]:
        """Copy the secrets that change into the row."""
        values: dict[str, Any] = super().clean() or {}
        self._check_command(values)
        given, removed = values.get("change_env") or {}, set(values.get("remove_env") or ())
        if given or removed:
            self._change_env(given, removed)
        if values.get("change_mcp_servers") is not None:
            self.instance.mcp_servers = values["change_mcp_servers"]
        return values

    def _check_command(self, values: dict[str, Any]) -> None:
        """Require a command where the agent type has none."""
        kind = plugins.agent_types().get(values.get("agent_type", ""))
        if kind is not None and not kind.argv and values.get("command") == []:
            self.add_error("command", f"{kind.title} has no command of its own: enter one.")

    def clean_change_mcp_servers(self) -> list[dict[str, Any]] | None:
        """Return the new servers; None if nothing was entered."""
        servers: list[dict[str, Any]] | None = self.cleaned_data["change_mcp_servers"]
        if servers is not None:
            check_mcp_servers(servers)
        return servers

    def _change_env(self, given: dict[str, str], removed: set[str]) -> None:
        """Change some variables; refused if the others cannot be decrypted, because they would be lost."""
        try:
            stored = dict(self.instance.env)
        except SecretUnreadable:
            self.add_error("change_env" if given else "remove_env", UNREADABLE_ENV)
            return
        kept = {name: value for name, value in stored.items() if name not in removed}
        self.instance.env = {**kept, **given}


def _kind_of(profile: AgentProfile | None) -> AgentType | None:
    """Return the type of an existing profile; None for a new one, or a type that is no longer there."""
    if profile is None:
        return None
    return plugins.agent_types().get(profile.agent_type)


def _describe_login(profile: AgentProfile | None) -> str:
    """Return how agents of the profile's type log in; for a new profile, those of each type."""
    kind = _kind_of(profile)
    if kind is None:
        return _key_help()
    if kind.login and kind.key:
        return f"{kind.title} logs in with “{kind.login}” as Kandev’s user, or with the variable {kind.key}."
    if kind.login:
        return f"{kind.title} logs in with “{kind.login}” as Kandev’s user."
    if kind.key:
        return f"{kind.title} logs in with the variable {kind.key}."
    return f"No login of {kind.title} is known to Kandev."


def _describe_command(profile: AgentProfile | None) -> str:
    """Return which program runs without a command here."""
    kind = _kind_of(profile)
    if kind is None:
        return "Most agent types have a command of their own."
    if not kind.argv:
        return f"{kind.title} has no command of its own: enter one."
    text = f"Without one, {kind.title} is started as “{shlex.join(kind.argv)}”."
    if kind.install:
        text = f"{text} It is installed with “{kind.install}”."
    return text


@admin.register(AgentProfile)
class AgentProfileAdmin(StaffModelAdmin):
    """How teams run agents."""

    form = AgentProfileForm
    list_display = ("name", "team", "agent_type", "model", "permission_mode", "variables", "created_at")
    list_filter = ("agent_type", "permission_mode", "team")
    list_select_related = ("team",)
    search_fields = ("name", "model", "team__name")
    date_hierarchy = "created_at"
    readonly_fields = ("variables", "servers", "disabled_at", "created_at")
    secret_fields = ("variables", "change_env", "remove_env")
    conversation_fields = ("supports_session_resume", "history_context_injection", "memory_check", "gone_patterns")

    def get_fieldsets(self, request: HttpRequest, obj: AgentProfile | None = None) -> Any:
        """Return the fields in groups, with what is known of the agent type."""
        return (
            (None, {"fields": ("name", "team", "agent_type", "model", "mode", "permission_mode")}),
            ("Keys and variables", {"fields": self.secret_fields, "description": _describe_login(obj)}),
            ("Command", {"fields": ("command", "args"), "description": _describe_command(obj)}),
            ("MCP servers", {"fields": ("servers", "change_mcp_servers", "secret_hosts")}),
            ("Workspace and processes", {"fields": ("additional_directories", "background_policy")}),
            ("Conversation after a restart", {"fields": self.conversation_fields}),
            ("Record", {"fields": ("disabled_at", "created_at")}),
        )

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        """Make the team of an existing profile read-only: another team would get its secrets and its sessions."""
        if obj:
            return ("team", *self.readonly_fields)
        return tuple(self.readonly_fields)

    def written(self, form: Form) -> set[str]:
        """Return the changed fields, including secrets that were entered."""
        written = super().written(form)
        if {"change_env", "remove_env"} & set(form.changed_data):
            written.add("env")
        if "change_mcp_servers" in form.changed_data:
            written.add("mcp_servers")
        return written

    def view_on_site(self, profile: AgentProfile) -> str:
        """Return the profile's page in the settings."""
        return reverse("settings-profile-of-agent", args=[profile.pk])

    @admin.display(description="environment")
    def variables(self, profile: AgentProfile) -> str:
        """Return the names of its variables, but not the values."""
        try:
            return ", ".join(f"{name} (set)" for name in sorted(profile.env)) or "–"
        except SecretUnreadable:
            return UNREADABLE_TEXT

    @admin.display(description="MCP servers")
    def servers(self, profile: AgentProfile) -> str:
        """Return the names of its servers."""
        try:
            return ", ".join(str(server.get("name", "?")) for server in profile.mcp_servers) or "–"
        except SecretUnreadable:
            return UNREADABLE_TEXT


@admin.register(AgentCapability)
class AgentCapabilityAdmin(ReadOnlyModelAdmin):
    """What agents claim to support and whether that was observed; written at the end of each start."""

    list_display = (
        *("team", "profile", "executor", "agent_name", "agent_version", "capability", "standing", "broken_how"),
        "last_seen_at",
    )
    list_select_related = ("team", "profile", "executor")
    list_filter = ("agent_type", "capability", "claimed", "broken_how")
    search_fields = ("agent_type", "agent_name", "agent_version", "broken_said")
    date_hierarchy = "last_seen_at"
    readonly_fields = ("in_words",)

    @admin.display(description="standing")
    def standing(self, row: AgentCapability) -> str:
        """Return the capability's standing."""
        return capability_standing(row)

    @admin.display(description="in words")
    def in_words(self, row: AgentCapability) -> str:
        """Return the sentence that users see."""
        return explain_capability(row)


@admin.register(ExecutorRunning)
class ExecutorRunningAdmin(ReadOnlyModelAdmin):
    """Executions, maintained by the supervisor and shown without their secrets."""

    hidden = ("auth_token", "resume_token", "rejected_resume_token", "state")
    list_display = ("id", "task", "session", "executor", "status", "status_reason", "error_code", "last_seen_at")
    list_filter = ("status", ("runtime", RuntimeListFilter), "error_code", "executor")
    list_select_related = ("task", "session", "executor")
    search_fields = ("id", "session__id", "task__title", "host_id", "container_id", "error_message")
    date_hierarchy = "created_at"
    readonly_fields = ("agentctl_token", "conversation", "rejected_conversation", "runtime_state")

    def get_queryset(self, request: HttpRequest) -> QuerySet[ExecutorRunning]:
        """Defer the secrets: lists need none, so none is decrypted for them."""
        rows: QuerySet[ExecutorRunning] = super().get_queryset(request)
        return rows.defer("auth_token", "resume_token", "rejected_resume_token", "state")

    @admin.display(description="agentctl's token")
    def agentctl_token(self, row: ExecutorRunning) -> str:
        """Return whether it is set."""
        return describe_secret(row, "auth_token")

    @admin.display(description="resume token")
    def conversation(self, row: ExecutorRunning) -> str:
        """Return the fingerprint of the agent's conversation id."""
        return describe_secret(row, "resume_token")

    @admin.display(description="rejected resume token")
    def rejected_conversation(self, row: ExecutorRunning) -> str:
        """Return the fingerprint of the conversation id that was set aside."""
        return describe_secret(row, "rejected_resume_token")

    @admin.display(description="the runtime's own state")
    def runtime_state(self, row: ExecutorRunning) -> str:
        """Return the names of the runtime's values, but not the values."""
        return json.dumps(sorted(row.state))


@admin.register(SecretKeyCheck)
class SecretKeyCheckAdmin(ReadOnlyModelAdmin):
    """Whether this web process has the secret key that the database's secrets are encrypted with."""

    hidden = ("text",)
    list_display = ("__str__", "is_right")
    search_fields = ("=id",)
    readonly_fields = ("is_right",)

    @admin.display(boolean=True, description="this web process has the right key")
    def is_right(self, check: SecretKeyCheck) -> bool:
        """Return whether one of the present keys decrypts the text."""
        try:
            return bool(check.text)
        except SecretUnreadable:
            return False

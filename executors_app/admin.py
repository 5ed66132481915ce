"""Admin pages for agent profiles, executors, agent capabilities and executions."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from executors_app import plugins
from executors_app.agent_capabilities import capability_standing, explain_capability
from executors_app.encryption import SecretUnreadable
from executors_app.mcp_servers import ANY_PROGRAM, check_mcp_servers
from executors_app.models import AgentCapability, AgentProfile, Executor, ExecutorRunning, check_env
from executors_app.orm import JSONFormField
from executors_app.staff_admin import (
    UNREADABLE_TEXT,
    Form,
    ReadOnlyModelAdmin,
    RuntimeListFilter,
    StaffModelAdmin,
    describe_secret,
    runtime_column,
)
from executors_app.wire.runtime_names import runtime_choice


class WriteOnlyTextarea(forms.Textarea):
    """A textarea whose content is never sent back, not even with a validation error."""

    def format_value(self, value: Any) -> str:
        """Return an empty string."""
        return ""


def _agent_types() -> list[tuple[str, str]]:
    """Return the choices of a profile: installed agents first, the others with the command that installs them."""
    choices = []
    for kind, is_missing in plugins.listed_agent_types():
        title = kind.title
        if is_missing:
            title = f"{title} (not installed here: {kind.install})"
        choices.append((kind.name, title))
    return choices


class AgentProfileForm(Form):
    """A profile form whose secrets can be set and removed, but not read."""

    agent_type = forms.ChoiceField(choices=_agent_types)
    change_env = JSONFormField(
        required=False,
        widget=WriteOnlyTextarea,
        label="Change the environment",
        help_text='A JSON object: {"API_KEY": "value", "OLD_KEY": null} sets one variable and removes another; '
        "the others stay as they are.",
    )
    change_mcp_servers = JSONFormField(
        required=False,
        widget=WriteOnlyTextarea,
        label="Replace the MCP servers",
        help_text='A JSON list of objects with a "name" each, and a "url" or a "command"; '
        "[] removes all; leave the field empty to keep them.",
    )

    class Meta:
        model = AgentProfile
        fields = "__all__"
        help_texts: ClassVar = {
            "team": "Empty: every team can use it.",
            "command": "Program and arguments, instead of those of the agent type: a JSON list of strings.",
            "args": "Arguments after the command: a JSON list of strings.",
            "mode": "The mode that the agent starts in, as it calls it. Empty: its own default.",
            "additional_directories": "Directories outside the workspace that the agent may use: a JSON list of paths.",
            "gone_patterns": "Regular expressions for the agent's errors that mean that its conversation is gone: "
            "a JSON list, added to those of the agent type.",
            "supports_session_resume": "Unknown: as the agent type declares.",
            "history_context_injection": "Whether a new conversation gets the history. Unknown: as the type declares.",
            "memory_check": "Test an agent that replays nothing with one short turn after each start.",
            "background_policy": "What happens to processes that the agent has left running when its session has been "
            "idle for long enough to sleep, unless the session has a choice of its own. Empty: as this installation.",
            "secret_hosts": "Which MCP servers of teams and repositories may be given a variable of the environment: "
            'a JSON object, such as {"DOCS_TOKEN": ["docs.example", "tools.example:8443"]}. Programs get one only if '
            f"it has the entry {ANY_PROGRAM!r}. Servers of this profile get what they refer to.",
        }

    def clean(self) -> dict[str, Any]:
        """Copy the secrets into the row."""
        values: dict[str, Any] = super().clean() or {}
        if values.get("change_env") is not None:
            self.instance.env = values["change_env"]
        if values.get("change_mcp_servers") is not None:
            self.instance.mcp_servers = values["change_mcp_servers"]
        return values

    def clean_change_env(self) -> dict[str, str] | None:
        """Return the new environment; None if nothing was entered."""
        change = self.cleaned_data["change_env"]
        if change is None:
            return None
        if not isinstance(change, dict):
            raise forms.ValidationError('Expected a JSON object, such as {"API_KEY": "value"}.')
        env = {name: value for name, value in {**self._env(), **change}.items() if value is not None}
        check_env(env)
        return env

    def clean_change_mcp_servers(self) -> list[dict[str, Any]] | None:
        """Return the new servers; None if nothing was entered."""
        servers: list[dict[str, Any]] | None = self.cleaned_data["change_mcp_servers"]
        if servers is not None:
            check_mcp_servers(servers)
        return servers

    def _env(self) -> dict[str, str]:
        """Return the current environment; empty if it cannot be decrypted."""
        try:
            return dict(self.instance.env)
        except SecretUnreadable:
            return {}


@admin.register(AgentProfile)
class AgentProfileAdmin(StaffModelAdmin):
    """How teams run agents."""

    form = AgentProfileForm
    list_display = ("name", "team", "agent_type", "model", "permission_mode", "variables", "created_at")
    list_filter = ("agent_type", "permission_mode", "team")
    list_select_related = ("team",)
    search_fields = ("name", "model", "team__name")
    date_hierarchy = "created_at"
    readonly_fields = ("variables", "servers", "created_at")
    fields = (
        "name",
        "team",
        "agent_type",
        "command",
        "args",
        "model",
        "mode",
        "additional_directories",
        "gone_patterns",
        "permission_mode",
        "supports_session_resume",
        "history_context_injection",
        "memory_check",
        "background_policy",
        "variables",
        "change_env",
        "servers",
        "change_mcp_servers",
        "secret_hosts",
        "created_at",
    )

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        """Make the team of an existing profile read-only: another team would get its secrets and its sessions."""
        if obj:
            return ("team", *self.readonly_fields)
        return tuple(self.readonly_fields)

    def written(self, form: Form) -> set[str]:
        """Return the changed fields, including secrets that were entered."""
        given = {name for name in ("env", "mcp_servers") if f"change_{name}" in form.changed_data}
        return super().written(form) | given

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


class ExecutorForm(Form):
    """An executor form with a choice of runtimes."""

    runtime = forms.ChoiceField(choices=lambda: [(name, runtime_choice(name)) for name in sorted(plugins.runtimes())])

    class Meta:
        model = Executor
        fields = "__all__"
        help_texts: ClassVar = {
            "config": "A JSON object with the settings of the runtime; docs/operate/places.md lists them. "
            "{} where agents run on this machine.",
            "max_live": "How many agents may run there at once. Empty: on this machine as many as its memory allows, "
            "elsewhere no limit.",
        }

    def clean_config(self) -> dict[str, Any]:
        """Return the settings: an empty field means none, anything but an object is rejected."""
        config = self.cleaned_data["config"]
        if config is None:
            return {}
        if not isinstance(config, dict):
            raise forms.ValidationError('Expected a JSON object, such as {"image": "kandev-agentctl"}.')
        return config


@admin.register(Executor)
class ExecutorAdmin(StaffModelAdmin):
    """The places where agents run."""

    form = ExecutorForm
    list_display = ("name", runtime_column, "max_live", "isolated", "created_at")
    list_filter = (("runtime", RuntimeListFilter),)
    search_fields = ("name", "runtime")
    date_hierarchy = "created_at"
    readonly_fields = ("isolated", "created_at")
    fields = ("name", "runtime", "config", "max_live", "isolated", "created_at")

    @admin.display(boolean=True, description="isolated")
    def isolated(self, executor: Executor) -> bool | None:
        """Whether agents there are kept away from the control plane; otherwise only trusted agents belong there."""
        try:
            return not executor.trusted_agents_only
        except plugins.UnknownPlugin:
            return None


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
    list_display = ("id", "task", "session", "executor", "status", "status_reason", "owner", "last_seen_at")
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

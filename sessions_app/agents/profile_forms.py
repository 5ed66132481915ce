"""The form of an agent profile: what everybody needs first, the rest folded; secrets go in and never come out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django import forms
from django.contrib.auth.models import Group

from executors_app.agents import AgentType
from executors_app.encryption import SecretUnreadable
from executors_app.form_fields import HostsField, LinesField, SecretInput, SecretLines, VariablesField, WordsField
from executors_app.mcp_servers import ANY_PROGRAM
from executors_app.models import AgentProfile
from sessions_app.agents.forms import McpServerForm

KEY_LIMIT: Final = 8_192
_YES_NO: Final = (("", "As the agent type declares"), ("yes", "Yes"), ("no", "No"))
_ANSWERS: Final[Mapping[str, bool | None]] = {"": None, "yes": True, "no": False}


class ProfileServerForm(McpServerForm):
    """The form for an MCP server of a profile, whose values are secrets."""

    values = forms.CharField(
        required=False,
        max_length=100_000,
        widget=SecretLines(),
        label="Headers or variables",
        help_text="One per line, as NAME=value. They are encrypted and never shown again.",
    )


@dataclass(frozen=True, slots=True)
class Fields:
    """Some fields of a form, as ``parts/form_fields.html`` renders them."""

    visible_fields: Sequence[Any]
    non_field_errors: Any = ()

    @property
    def has_errors(self) -> bool:
        """Whether what was entered in one of them is not valid."""
        return any(field.errors for field in self.visible_fields)


class ProfileForm(forms.Form):
    """A profile of one agent type. ``allowed``: the values of the model that the user may write."""

    name = forms.CharField(max_length=200, help_text="As people see it when they start a session.")
    team: forms.ModelChoiceField[Group] = forms.ModelChoiceField(
        queryset=None,
        required=False,
        empty_label="All teams",
        help_text="Who can use it, with its keys. This cannot be changed later.",
    )
    model = forms.CharField(max_length=200, required=False, help_text="As the agent calls it. Empty: its own default.")
    mode = forms.CharField(
        max_length=200, required=False, help_text="The mode it starts in, such as plan. Empty: its own default."
    )
    permission_mode = forms.ChoiceField(
        choices=AgentProfile.PermissionMode.choices,
        label="When it asks for permission",
        help_text="“Approve automatically” lets it do everything it asks for, without anybody looking.",
    )
    key = forms.CharField(max_length=KEY_LIMIT, required=False, widget=SecretInput())
    variables = VariablesField(
        label="Set variables",
        help_text="One per line, as NAME=value. They are encrypted, given to the agent, and never shown again.",
    )
    removed = forms.MultipleChoiceField(
        required=False, widget=forms.CheckboxSelectMultiple(), label="Remove variables", choices=()
    )
    command = WordsField(
        help_text="Program and arguments, as in a shell, but no shell runs it. It runs wherever sessions of this "
        "profile run.",
    )
    args = WordsField(label="More arguments", help_text="After the command, as in a shell.")
    additional_directories = LinesField(
        label="More directories",
        help_text="Absolute paths outside the workspace that the agent may use, one per line.",
    )
    background_policy = forms.ChoiceField(
        choices=[("", "As this installation"), *AgentProfile.BackgroundPolicy.choices],
        required=False,
        label="Processes left running",
        help_text="When its session would sleep. A session can have a choice of its own.",
    )
    memory_check = forms.BooleanField(
        required=False,
        label="Check its memory after a start",
        help_text="One short turn after starts that nothing else proves.",
    )
    supports_session_resume = forms.ChoiceField(choices=_YES_NO, required=False, label="Restores its own conversation")
    history_context_injection = forms.ChoiceField(
        choices=_YES_NO, required=False, label="Gets the history in a new conversation"
    )
    gone_patterns = LinesField(
        label="Errors that mean its conversation is gone",
        help_text="Regular expressions, one per line, in addition to those of the agent type.",
    )
    secret_hosts = HostsField(
        label="Secrets for MCP servers of teams",
        help_text="One variable per line with the hosts that may be given its value: DOCS_TOKEN: docs.example, "
        f"tools.example:8443. {ANY_PROGRAM} means any program.",
    )
    removed_servers = forms.MultipleChoiceField(
        required=False, widget=forms.CheckboxSelectMultiple(), label="Remove MCP servers", choices=()
    )

    basic: Final = ("name", "team", "model", "mode", "permission_mode", "key")

    def __init__(
        self, kind: AgentType | None, allowed: Collection[str], *args: Any, profile: AgentProfile | None, **kwargs: Any
    ):
        super().__init__(*args, **kwargs)
        self.kind, self.profile, self.allowed = kind, profile, allowed
        names = set(allowed)
        if profile is None:
            names.add("team")
            self.fields["team"].queryset = Group.objects.order_by("name")  # type: ignore[attr-defined]
        if "env" in names:
            names |= {"key", "variables", "removed"}
        if "mcp_servers" in names:
            names.add("removed_servers")
        for name in set(self.fields) - names:
            del self.fields[name]
        self._describe_secrets()
        if "command" in self.fields and kind is not None and not kind.argv:
            self.fields["command"].required = True

    def _describe_secrets(self) -> None:
        """Offer to remove what is set, by its name, and name the key of the agent type."""
        known, servers = stored_names(self.profile)
        key = self.kind.key if self.kind is not None else ""
        if "key" in self.fields and key:
            self.fields["key"].label = f"Key ({key})"
            state = "A key is set; a new one replaces it." if key in known else "Instead of a login of its own."
            self.fields["key"].help_text = f"{state} It is encrypted and never shown again."
        elif "key" in self.fields:
            del self.fields["key"]
        for field, names in (("removed", known), ("removed_servers", servers)):
            if field in self.fields and names:
                self.fields[field].choices = [(name, name) for name in names]  # type: ignore[attr-defined]
            elif field in self.fields:
                del self.fields[field]

    @property
    def first(self) -> Fields:
        """The fields that are shown at once, with the errors of the form."""
        shown = set(self.basic)
        if self.kind is not None and not self.kind.argv:
            shown.add("command")
        return Fields([self[name] for name in self.fields if name in shown], self.non_field_errors())

    @property
    def rest(self) -> Fields:
        """The fields that are folded."""
        shown = {field.name for field in self.first.visible_fields}
        return Fields([self[name] for name in self.fields if name not in shown])

    def clean_supports_session_resume(self) -> bool | None:
        """Return yes, no, or None for what the type declares."""
        return _ANSWERS[self.cleaned_data["supports_session_resume"]]

    def clean_history_context_injection(self) -> bool | None:
        """Return yes, no, or None for what the type declares."""
        return _ANSWERS[self.cleaned_data["history_context_injection"]]

    def values(self) -> dict[str, Any]:
        """Return the values of a valid form as the model has them; secrets only if they change. Raises ValidationError.

        Whoever saves them names the version of the profile that the form was made from, so nothing that was read here
        overwrites what somebody else has stored meanwhile.
        """
        data = self.cleaned_data
        direct = ("team", *self.allowed)
        values = {name: data[name] for name in direct if name in data and name not in ("env", "mcp_servers")}
        values |= self._environment() | self._servers()
        return values

    def _environment(self) -> dict[str, Any]:
        data = self.cleaned_data
        change = dict(data.get("variables") or {})
        if data.get("key") and self.kind is not None:
            change[self.kind.key] = data["key"].strip()
        removed = set(data.get("removed") or ())
        if not change and not removed:
            return {}
        stored = self._stored("env") or {}
        return {"env": {name: value for name, value in stored.items() if name not in removed} | change}

    def _servers(self) -> dict[str, Any]:
        removed = set(self.cleaned_data.get("removed_servers") or ())
        if not removed:
            return {}
        return {"mcp_servers": [each for each in self._stored("mcp_servers") or [] if each.get("name") not in removed]}

    def _stored(self, name: str) -> Any:
        """Return what is stored; nothing if it cannot be decrypted: then what is entered replaces it, as said there."""
        if self.profile is None:
            return None
        try:
            return getattr(self.profile, name)
        except SecretUnreadable:
            return None


def stored_names(profile: AgentProfile | None) -> tuple[list[str], list[str]]:
    """Return the names of the variables and MCP servers that are set, without any value."""
    if profile is None:
        return [], []
    try:
        return sorted(profile.env), [str(each.get("name", "")) for each in profile.mcp_servers if each.get("name")]
    except SecretUnreadable:
        return [], []


def initial_of(profile: AgentProfile) -> dict[str, Any]:
    """Return what the form shows of a profile: everything but its secrets."""
    answers = {answer: word for word, answer in _ANSWERS.items()}
    return {
        "name": profile.name,
        "model": profile.model,
        "mode": profile.mode,
        "permission_mode": profile.permission_mode,
        "command": profile.command,
        "args": profile.args,
        "additional_directories": profile.additional_directories,
        "background_policy": profile.background_policy,
        "memory_check": profile.memory_check,
        "supports_session_resume": answers[profile.supports_session_resume],
        "history_context_injection": answers[profile.history_context_injection],
        "gone_patterns": profile.gone_patterns,
        "secret_hosts": profile.secret_hosts,
    }

"""Forms for a workflow, for starting a run, and for the settings of one node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from django import forms
from django.contrib.auth.models import Group, User
from django.db.models import Q, QuerySet

from executors_app.models import AgentProfile, Executor
from sessions_app.accounts.authorization import writable_teams
from sessions_app.agents.services.profiles import visible_profiles
from sessions_app.catalogue.services.repositories import only_or_default, without_scratch
from sessions_app.models import Repository
from sessions_app.workflows.language.limits import MAX_BYTES, MAX_ITERATIONS, MAX_RETRIES
from sessions_app.workflows.language.schema import Port
from sessions_app.workflows.language.values import to_text
from sessions_app.workflows.loader.editing import SESSION_PORTS, EditNotPossible
from sessions_app.workflows.models import Workflow
from sessions_app.workflows.services.loading import apply_node_changes, load_node_data

PAUSE_HINT = "Any change of what they do pauses them until someone confirms the change."
FIELD_PREFIX: Final = "node"
KEEP_SESSION_FIELD: Final = "keep_session"
_TRIGGERS: Final = (("manual", "by hand"), ("cron", "on a schedule (cron)"), ("idle", "when the team is idle"))
NODE_TYPE_ALIASES: Final = {"script": "shell"}


class WorkflowForm(forms.Form):
    """Name, team, repository, agent and executor of a workflow; without ``workflow``, of a new one."""

    name = forms.CharField(max_length=200, label="Name")
    team: forms.ModelChoiceField[Group] = forms.ModelChoiceField(queryset=None, label="Team", empty_label=None)
    repository: forms.ModelChoiceField[Repository] = forms.ModelChoiceField(
        queryset=None, label="Repository", required=False, empty_label="None (an empty directory)"
    )
    agent_profile: forms.ModelChoiceField[AgentProfile] = forms.ModelChoiceField(
        queryset=None,
        label="Agent",
        required=False,
        empty_label="None",
        help_text="Default agent for steps without one.",
    )
    executor: forms.ModelChoiceField[Executor] = forms.ModelChoiceField(
        queryset=None, label="Executor", required=False, empty_label="Default executor"
    )
    triggers_enabled = forms.BooleanField(
        required=False,
        label="Enable scheduled triggers",
        help_text=f"Scheduled runs have your rights. {PAUSE_HINT}",
    )
    text = forms.CharField(max_length=MAX_BYTES, strip=False, widget=forms.HiddenInput)
    revision = forms.IntegerField(required=False, min_value=0, widget=forms.HiddenInput)

    def __init__(self, user: User, workflow: Workflow | None, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if workflow is None:
            teams = writable_teams(user)
        else:
            teams = Group.objects.filter(id=workflow.team_id)
        kept_repository = workflow.repository_id if workflow else None
        of_teams = Repository.objects.visible_to(user).filter(team__in=teams).select_related("team")
        repositories = without_scratch(of_teams, keep=kept_repository)
        self._set_choices("team", teams)
        self._set_choices("repository", repositories)
        chosen = (workflow.agent_profile_id, workflow.executor_id) if workflow else (None, None)
        self._set_choices("agent_profile", visible_profiles(user).filter(Q(disabled_at=None) | Q(pk=chosen[0])))
        self._set_choices("executor", Executor.objects.filter(Q(disabled_at=None) | Q(pk=chosen[1])))
        if workflow is not None:
            self._adapt_triggers(workflow)
        else:
            usual = only_or_default(of_teams)  # as run_workflow does
            if usual is not None:
                self.initial.setdefault("repository", usual.pk)
        self.only_team: Group | None = None
        if workflow is not None or teams.count() == 1:
            self.fields["team"].required = False
            self.fields["team"].widget = forms.HiddenInput()
            self.only_team = teams.first()

    def _set_choices(self, name: str, rows: QuerySet[Any]) -> None:
        field = self.fields[name]
        assert isinstance(field, forms.ModelChoiceField)  # noqa: S101
        field.queryset = rows

    def _adapt_triggers(self, workflow: Workflow) -> None:
        if workflow.triggers_paused:
            del self.fields["triggers_enabled"]  # the change must be confirmed where it is shown
        elif workflow.triggers_enabled_by is not None:
            name = workflow.triggers_enabled_by.get_username()
            self.fields["triggers_enabled"].help_text = f"Scheduled runs have the rights of {name}. {PAUSE_HINT}"

    def clean(self) -> dict[str, Any]:
        """Convert line ends, and check that repository and agent belong to the team."""
        values = super().clean() or {}
        values["text"] = values.get("text", "").replace("\r\n", "\n")
        team = values["team"] = values.get("team") or self.only_team
        for name, label in (("repository", "repository"), ("agent_profile", "agent")):
            row = values.get(name)
            if row is not None and team is not None and row.team_id not in (None, team.pk):
                self.add_error(name, f"This {label} belongs to another team.")
        return values

    def values(self) -> dict[str, Any]:
        """Return the values to save; the team of an existing workflow never changes."""
        return {name: value for name, value in self.cleaned_data.items() if name != "revision"}


def initial_values(row: Workflow) -> dict[str, Any]:
    """Return the values of a workflow for the form."""
    return {
        "name": row.name,
        "repository": row.repository_id,
        "agent_profile": row.agent_profile_id,
        "executor": row.executor_id,
        "triggers_enabled": row.triggers_enabled,
        "text": row.text,
        "revision": row.revision,
    }


class RunForm(forms.Form):
    """The inputs of a new run."""

    text = forms.CharField(
        label="Input text",
        required=False,
        strip=False,
        max_length=MAX_BYTES,
        widget=forms.Textarea(attrs={"rows": 3}),
        help_text="The text of the trigger. How it is used depends on the workflow.",
    )
    revision = forms.IntegerField(required=False, min_value=1, widget=forms.HiddenInput)
    """The revision on the page: a user must not start a text that they have not seen."""

    def __init__(self, declared: Sequence[Port], *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._declared = {f"input-{number}": port for number, port in enumerate(declared)}
        for name, port in self._declared.items():
            self.fields[name] = _make_input_field(port)
        if any(port.name == "text" for port in declared):
            del self.fields["text"]

    def inputs(self) -> dict[str, Any]:
        """Return the values for triggers, and the declared inputs by name; for valid forms only."""
        values: dict[str, Any] = {"text": self.cleaned_data.get("text", ""), "params": {}, "type": "manual"}
        for name, port in self._declared.items():
            values[port.name] = self.cleaned_data[name]
        for name, value in values.items():
            if isinstance(value, str):
                values[name] = value.replace("\r\n", "\n")
        return values


def _make_input_field(port: Port) -> forms.Field:
    """Return the field of a declared input. The service checks its type, as it does for the API."""
    label = (port.label or port.name)[:200]
    help_text = port.description or ""
    if port.type == "boolean":
        initially_on = port.default in (True, "true")
        return forms.BooleanField(label=label, help_text=help_text, required=False, initial=initially_on)
    rows = 1 if port.type == "number" else 3
    initial = "" if port.default is None else to_text(port.default)
    return forms.CharField(
        label=label,
        help_text=help_text,
        required=port.required,
        initial=initial,
        strip=False,
        max_length=MAX_BYTES,
        widget=forms.Textarea(attrs={"rows": rows}),
    )


FieldFactory = Callable[[], forms.Field]


def _line_field(label: str, **more: Any) -> FieldFactory:
    return lambda: forms.CharField(label=label, required=False, max_length=200, **more)


def _number_field(label: str, most: int) -> FieldFactory:
    return lambda: forms.IntegerField(label=label, required=False, min_value=1, max_value=most)


def _text_field(label: str, rows: int = 6, **more: Any) -> FieldFactory:
    area = forms.Textarea(attrs={"rows": rows, "spellcheck": "false"})
    return lambda: forms.CharField(label=label, required=False, strip=False, max_length=MAX_BYTES, widget=area, **more)


_timeout_field: Final = _number_field("Timeout in seconds", 604_800)
NODE_FIELDS: Final[Mapping[str, Mapping[str, FieldFactory]]] = {
    "agent": {
        "runner": _line_field(
            "Agent", help_text="The kind of agent, such as claude-code. Empty: the agent of the workflow."
        ),
        "model": _line_field("Model"),
        "prompt": _text_field("Prompt"),
        "timeout": _timeout_field,
        KEEP_SESSION_FIELD: lambda: forms.BooleanField(
            label="Keep the session",
            required=False,
            help_text="In a loop, each iteration continues the conversation of the previous one. The step gets the "
            f"inputs {' and '.join(SESSION_PORTS)}, for its first prompt and for later ones.",
        ),
    },
    "shell": {"script": _text_field("Script"), "timeout": _timeout_field},
    "function": {"code": _text_field("Code")},
    "loop": {"maxIterations": _number_field("Maximum iterations", MAX_ITERATIONS)},
    "gate": {"maxRetries": _number_field("Maximum retries", MAX_RETRIES)},
    "trigger": {
        "triggerType": lambda: forms.ChoiceField(label="Starts", choices=_TRIGGERS),
        "cron": _line_field(
            "Schedule (cron, in UTC)", help_text="Five fields, as in “*/5 * * * *” (every five minutes)."
        ),
        "idleMinutes": _number_field("Idle minutes", 10_080),
    },
    "workdir": {"path": _line_field("Path")},
}
"""The fields for each node type; every node also has a label."""


class NodeSettingsForm(forms.Form):
    """The settings of a node in a text.

    Raises EditNotPossible if there is no such node, and ChecksUnavailable.
    """

    def __init__(self, text: str, node: str, data: Any = None):
        self.text, self.node = text, node
        self.written = load_node_data(text, node)
        self.kind = str(self.written["type"])
        super().__init__(data, prefix=FIELD_PREFIX, initial=self._initial())
        self.fields["label"] = forms.CharField(label="Label", required=False, max_length=200)
        for name, make in NODE_FIELDS.get(NODE_TYPE_ALIASES.get(self.kind, self.kind), {}).items():
            if isinstance(self.written.get(name, ""), str | int | float):
                self.fields[name] = make()

    def _initial(self) -> dict[str, Any]:
        initial = {"triggerType": "manual"} | self.written
        initial[KEEP_SESSION_FIELD] = self._keeps_session()
        return initial

    def _keeps_session(self) -> bool:
        if self.written.get("resumable") is True:
            return True
        ports = self.written.get("inputs")
        if not isinstance(ports, list):
            return False
        names = {str(port.get("name")) for port in ports if isinstance(port, dict)}
        return names >= set(SESSION_PORTS)

    def apply_to_text(self) -> str:
        """Return the text with the changes of a valid form. Raises EditNotPossible and ChecksUnavailable."""
        changes: dict[str, Any] = {}
        for name in self.fields:
            value = self._submitted_value(name)
            before = self.initial.get(name)
            if before is None:
                before = self._empty_value(name)
            if value == before:
                continue
            if value == "" and name != KEEP_SESSION_FIELD:
                value = None
            changes[name] = value
        kept = changes.pop(KEEP_SESSION_FIELD, None)
        if not changes and kept is None:
            return self.text
        return apply_node_changes(self.text, self.node, changes, session_kept=kept)

    def _submitted_value(self, name: str) -> Any:
        """Return the submitted value with converted line ends, and with a final line break if there was one before."""
        value = self.cleaned_data.get(name)
        if not isinstance(value, str):
            return value
        value = value.replace("\r\n", "\n")
        before = self.initial.get(name)
        had_line_break = isinstance(before, str) and before.endswith("\n")
        if had_line_break and value and not value.endswith("\n"):
            return f"{value}\n"
        return value

    def _empty_value(self, name: str) -> Any:
        if isinstance(self.fields[name], forms.IntegerField):
            return None
        return ""


def build_node_form(text: str, node: str, data: Any = None) -> NodeSettingsForm | None:
    """Return the form of a node; None if the text has no such node. Raises ChecksUnavailable."""
    if not node:
        return None
    try:
        return NodeSettingsForm(text, node, data)
    except EditNotPossible:
        return None

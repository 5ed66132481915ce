"""Forms for a workflow, for starting a run, and for the settings of one node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from django import forms
from django.contrib.auth.models import Group, User

from executors_app.models import AgentProfile, Executor
from sessions_app.accounts.authorization import writable_teams
from sessions_app.agents.services.profiles import visible_profiles
from sessions_app.catalogue.services.repositories import without_scratch
from sessions_app.models import Repository
from sessions_app.workflows.language.limits import MAX_BYTES, MAX_ITERATIONS, MAX_RETRIES
from sessions_app.workflows.language.schema import Port
from sessions_app.workflows.language.values import to_text
from sessions_app.workflows.loader.editing import SESSION_PORTS, EditNotPossible
from sessions_app.workflows.models import Workflow
from sessions_app.workflows.services.loading import apply_node_changes, load_node_data

PAUSE_HINT = "Any change of what they do pauses them until someone confirms the change."
CHOICE_FIELDS = ("team", "repository", "agent_profile", "executor")


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
        repositories = without_scratch(
            Repository.objects.visible_to(user).filter(team__in=teams).select_related("team"),
            keep=workflow.repository_id if workflow else None,
        )
        rows: tuple[Any, ...] = (teams, repositories, visible_profiles(user), Executor.objects.all())
        for name, found in zip(CHOICE_FIELDS, rows, strict=True):
            field = self.fields[name]
            assert isinstance(field, forms.ModelChoiceField)  # noqa: S101
            field.queryset = found
        if workflow is None and len(first_two := list(repositories[:2])) == 1:
            self.initial.setdefault("repository", first_two[0].pk)  # as run_workflow does
        if workflow is not None and workflow.triggers_paused:
            del self.fields["triggers_enabled"]  # the change must be confirmed where it is shown
        elif workflow is not None and workflow.triggers_enabled_by is not None:
            name = workflow.triggers_enabled_by.get_username()
            self.fields["triggers_enabled"].help_text = f"Scheduled runs have the rights of {name}. {PAUSE_HINT}"
        if workflow is not None or teams.count() == 1:
            self.fields["team"].required = False
            self.fields["team"].widget = forms.HiddenInput()
            self.only_team = teams.first()

    only_team: Group | None = None

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
    names = ("name", "repository", "agent_profile", "executor", "triggers_enabled", "text", "revision")
    return {name: getattr(row, f"{name}_id" if name in CHOICE_FIELDS else name) for name in names}


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
        self._declared = {f"input-{number}": one for number, one in enumerate(declared)}
        for name, one in self._declared.items():
            self.fields[name] = _make_input_field(one)
        if any(port.name == "text" for port in declared):
            del self.fields["text"]

    def inputs(self) -> dict[str, Any]:
        """Return the values for triggers, and the declared inputs by name; for valid forms only."""
        given: dict[str, Any] = {"text": self.cleaned_data.get("text", ""), "params": {}, "type": "manual"}
        given |= {one.name: self.cleaned_data[name] for name, one in self._declared.items()}
        return {name: one.replace("\r\n", "\n") if isinstance(one, str) else one for name, one in given.items()}


def _make_input_field(one: Port) -> forms.Field:
    """Return the field of a declared input. The service checks its type, as it does for the API."""
    options: dict[str, Any] = {"label": (one.label or one.name)[:200], "help_text": one.description or ""}
    if one.type == "boolean":
        return forms.BooleanField(**options, required=False, initial=one.default in (True, "true"))
    rows = 1 if one.type == "number" else 3
    widget = forms.Textarea(attrs={"rows": rows})
    initial = "" if one.default is None else to_text(one.default)
    return forms.CharField(
        **options, required=one.required, initial=initial, strip=False, max_length=MAX_BYTES, widget=widget
    )


FIELD_PREFIX: Final = "node"
KEEP_SESSION_FIELD: Final = "keep_session"
FieldFactory = Callable[[], forms.Field]


def _line_field(label: str, **more: Any) -> FieldFactory:
    return lambda: forms.CharField(label=label, required=False, max_length=200, **more)


def _number_field(label: str, most: int) -> FieldFactory:
    return lambda: forms.IntegerField(label=label, required=False, min_value=1, max_value=most)


def _text_field(label: str, rows: int = 6, **more: Any) -> FieldFactory:
    area = forms.Textarea(attrs={"rows": rows, "spellcheck": "false"})
    return lambda: forms.CharField(label=label, required=False, strip=False, max_length=MAX_BYTES, widget=area, **more)


_TIMEOUT: Final[Mapping[str, FieldFactory]] = {"timeout": _number_field("Timeout in seconds", 604_800)}
_TRIGGERS: Final = (("manual", "by hand"), ("cron", "on a schedule (cron)"), ("idle", "when the team is idle"))
NODE_FIELDS: Final[Mapping[str, Mapping[str, FieldFactory]]] = {
    "agent": {
        "runner": _line_field(
            "Runner", help_text="The kind of agent, such as claude-code. Empty: the agent of the workflow."
        ),
        "model": _line_field("Model"),
        "prompt": _text_field("Prompt"),
        **_TIMEOUT,
        KEEP_SESSION_FIELD: lambda: forms.BooleanField(
            label="Keep the session",
            required=False,
            help_text="In a loop, each iteration continues the conversation of the previous one. The node gets the "
            f"inputs {' and '.join(SESSION_PORTS)}, for its first prompt and for later ones.",
        ),
    },
    "shell": {"script": _text_field("Script"), **_TIMEOUT},
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
NODE_TYPE_ALIASES: Final = {"script": "shell"}


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
        ports = self.written.get("inputs")
        if isinstance(ports, list):
            names = {str(port.get("name")) for port in ports if isinstance(port, dict)}
        else:
            names = set()
        kept = self.written.get("resumable") is True or names >= set(SESSION_PORTS)
        return {"triggerType": "manual", **self.written, KEEP_SESSION_FIELD: kept}

    def apply_to_text(self) -> str:
        """Return the text with the changes of a valid form. Raises EditNotPossible and ChecksUnavailable."""
        changes: dict[str, Any] = {}
        for name in self.fields:
            value, before = self._submitted_value(name), self.initial.get(name)
            if value == (before if before is not None else self._empty_value(name)):
                continue
            if name == KEEP_SESSION_FIELD or value not in ("", None):
                changes[name] = value
            else:
                changes[name] = None
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
        keeps_end = isinstance(before, str) and before.endswith("\n") and value and not value.endswith("\n")
        if keeps_end:
            return f"{value}\n"
        return value

    def _empty_value(self, name: str) -> Any:
        if isinstance(self.fields[name], forms.IntegerField):
            return None
        return ""


def build_node_form(text: str, node: str, data: Any = None) -> NodeSettingsForm | None:
    """Return the form of a node; None if the text has no such node. Raises ChecksUnavailable."""
    try:
        if node:
            return NodeSettingsForm(text, node, data)
        return None
    except EditNotPossible:
        return None

"""The forms of workflows: what a team keeps with a text, and what a run is started with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django import forms
from django.contrib.auth.models import Group

from executors_app.models import AgentProfile, Executor
from sessions_app.models import Repository, Workflow
from sessions_app.services.catalogue import visible_profiles
from sessions_app.services.rights import writable_teams
from sessions_app.workflows.limits import MAX_BYTES
from sessions_app.workflows.schema import Port
from sessions_app.workflows.values import to_text

PAUSES = "Any change of what they do pauses them until somebody confirms it."
CHOICES = ("team", "repository", "agent_profile", "executor")


class WorkflowForm(forms.Form):
    """Its name, where runs of it work, and who works; without a ``workflow`` for a new one."""

    name = forms.CharField(max_length=200, label="Name")
    team: forms.ModelChoiceField[Group] = forms.ModelChoiceField(queryset=None, label="Team", empty_label=None)
    repository: forms.ModelChoiceField[Repository] = forms.ModelChoiceField(
        queryset=None, label="Repository", required=False, empty_label="None: an empty directory"
    )
    agent_profile: forms.ModelChoiceField[AgentProfile] = forms.ModelChoiceField(
        queryset=None,
        label="Agent",
        required=False,
        empty_label="None",
        help_text="Of nodes that name no runner.",
    )
    executor: forms.ModelChoiceField[Executor] = forms.ModelChoiceField(
        queryset=None, label="Where it runs", required=False, empty_label="The usual place"
    )
    triggers_enabled = forms.BooleanField(
        required=False,
        label="Enable scheduled triggers",
        help_text=f"Scheduled runs have your rights. {PAUSES}",
    )
    text = forms.CharField(max_length=MAX_BYTES, strip=False, widget=forms.HiddenInput)
    revision = forms.IntegerField(required=False, min_value=0, widget=forms.HiddenInput)

    def __init__(self, user: Any, workflow: Workflow | None, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        teams = writable_teams(user) if workflow is None else Group.objects.filter(id=workflow.team_id)
        repositories = Repository.objects.visible_to(user).filter(team__in=teams).select_related("team")
        rows: tuple[Any, ...] = (teams, repositories, visible_profiles(user), Executor.objects.all())
        for name, found in zip(CHOICES, rows, strict=True):
            field = self.fields[name]
            assert isinstance(field, forms.ModelChoiceField)  # noqa: S101
            field.queryset = found
        if workflow is None and len(first_two := list(repositories[:2])) == 1:
            self.initial.setdefault("repository", first_two[0].pk)  # the command takes the only one, too
        if workflow is not None and workflow.triggers_paused:
            del self.fields["triggers_enabled"]  # what has changed is confirmed where it is shown
        elif workflow is not None and workflow.triggers_enabled_by is not None:
            name = workflow.triggers_enabled_by.get_username()
            self.fields["triggers_enabled"].help_text = f"Scheduled runs have the rights of {name}. {PAUSES}"
        if workflow is not None or teams.count() == 1:
            self.fields["team"].required = False
            self.fields["team"].widget = forms.HiddenInput()
            self.only_team = teams.first()

    only_team: Group | None = None

    def clean(self) -> dict[str, Any]:
        """Lines end as they do in files, and all that is named is the team's."""
        values = super().clean() or {}
        values["text"] = values.get("text", "").replace("\r\n", "\n")
        team = values["team"] = values.get("team") or self.only_team
        for name, what in (("repository", "repository"), ("agent_profile", "agent")):
            row = values.get(name)
            if row is not None and team is not None and row.team_id not in (None, team.pk):
                self.add_error(name, f"This {what} belongs to another team.")
        return values

    def values(self) -> dict[str, Any]:
        """What is kept; the team of a workflow never changes."""
        return {name: value for name, value in self.cleaned_data.items() if name != "revision"}


def initial_of(row: Workflow) -> dict[str, Any]:
    """A workflow as the form shows it."""
    names = ("name", "repository", "agent_profile", "executor", "triggers_enabled", "text", "revision")
    return {name: getattr(row, f"{name}_id" if name in CHOICES else name) for name in names}


class RunForm(forms.Form):
    """What a run is started with."""

    text = forms.CharField(
        label="What the run is told",
        required=False,
        strip=False,
        max_length=MAX_BYTES,
        widget=forms.Textarea(attrs={"rows": 3}),
        help_text="The trigger’s text; what it is for depends on the workflow.",
    )
    revision = forms.IntegerField(required=False, min_value=1, widget=forms.HiddenInput)
    """The one that was on the page: nobody starts what they have not seen."""

    def __init__(self, declared: Sequence[Port], *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._declared = {f"input-{number}": one for number, one in enumerate(declared)}
        for name, one in self._declared.items():
            self.fields[name] = _input_field(one)
        if any(one.name == "text" for one in declared):
            del self.fields["text"]

    def inputs(self) -> dict[str, Any]:
        """What the triggers give, and the declared inputs by name; valid forms only."""
        given: dict[str, Any] = {"text": self.cleaned_data.get("text", ""), "params": {}, "type": "manual"}
        given |= {one.name: self.cleaned_data[name] for name, one in self._declared.items()}
        return {name: one.replace("\r\n", "\n") if isinstance(one, str) else one for name, one in given.items()}


def _input_field(one: Port) -> forms.Field:
    """The field of a declared input; its type is checked by the service, for the API in the same way."""
    about: dict[str, Any] = {"label": (one.label or one.name)[:200], "help_text": one.description or ""}
    if one.type == "boolean":
        return forms.BooleanField(**about, required=False, initial=one.default in (True, "true"))
    rows = 1 if one.type == "number" else 3
    widget = forms.Textarea(attrs={"rows": rows})
    initial = "" if one.default is None else to_text(one.default)
    return forms.CharField(
        **about, required=one.required, initial=initial, strip=False, max_length=MAX_BYTES, widget=widget
    )


class Whole(forms.IntegerField):
    """A whole number that a node may leave out."""

    def __init__(self, label: str, most: int, **kwargs: Any):
        super().__init__(label=label, required=False, min_value=1, max_value=most, **kwargs)

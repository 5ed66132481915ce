"""The forms of the repositories of teams."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib.auth.models import Group

from executors_app.models import check_labels
from sessions_app.board.services.tasks import BRANCH_PATTERN
from sessions_app.models import Repository

_BRANCH_ERROR = {"invalid": "This cannot be the name of a branch."}


class RepositoryAddForm(forms.Form):
    """The form with which staff open a repository of the server's disk to a team."""

    team: forms.ModelChoiceField[Group] = forms.ModelChoiceField(Group.objects.order_by("name"), empty_label=None)
    path = forms.CharField(max_length=4096, help_text="Of a git repository on this server, such as /srv/git/project.")
    name = forms.CharField(max_length=200, required=False, help_text="If empty, the last part of the path.")

    def clean(self) -> dict[str, Any]:
        """Name the repository after its path unless it has a name."""
        values = super().clean() or {}
        if not values.get("name"):
            values["name"] = values.get("path", "").rstrip("/").rpartition("/")[2][:200]
        return values


class RepositorySettingsForm(forms.Form):
    """The form for a repository's settings."""

    name = forms.CharField(max_length=200)
    default_branch = forms.RegexField(
        BRANCH_PATTERN,
        max_length=255,
        required=False,
        help_text="Its main branch, for people and for programs that read it. If empty, it is unknown.",
        error_messages=_BRANCH_ERROR,
    )
    default_base = forms.RegexField(
        BRANCH_PATTERN,
        max_length=255,
        required=False,
        label="New tasks start from",
        help_text="A branch, a tag or a commit. If empty, what is checked out when a session starts.",
        error_messages=_BRANCH_ERROR,
    )
    executor_labels = forms.CharField(
        max_length=500,
        required=False,
        validators=[check_labels],
        label="Labels of executors",
        help_text="What an executor must offer for sessions that a pool places, separated by commas. Often empty.",
    )
    version = forms.CharField(max_length=64, widget=forms.HiddenInput)

    @classmethod
    def showing(cls, row: Repository, version: str) -> RepositorySettingsForm:
        """Return the form with the present settings."""
        names = ("name", "default_branch", "default_base", "executor_labels")
        return cls(initial={**{name: getattr(row, name) for name in names}, "version": version})

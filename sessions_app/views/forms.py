"""The forms for new tasks and sessions, narrowed to what the user's teams have."""

from __future__ import annotations

from typing import Any

from django import forms

from executors_app.models import AgentProfile, Executor
from sessions_app.models import Repository, Task, TaskSession
from sessions_app.services.catalogue import profiles_for, visible_profiles
from sessions_app.services.intents import TEXT_LIMIT
from sessions_app.services.rights import writable_teams
from sessions_app.services.usual import usual_choice


class _StartForm(forms.Form):
    """Who is to work, and where."""

    agent_profile: forms.ModelChoiceField[AgentProfile] = forms.ModelChoiceField(
        queryset=None, label="Agent", empty_label=None
    )
    executor: forms.ModelChoiceField[Executor] = forms.ModelChoiceField(
        queryset=None, label="Where it runs", empty_label=None
    )

    def __init__(self, user: Any, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.choose("agent_profile", visible_profiles(user))
        self.choose("executor", Executor.objects.all())
        usual = usual_choice(user)
        self.initial = {"agent_profile": usual.profile, "executor": usual.executor, **self.initial}
        if "repository" in self.fields:
            self.initial.setdefault("repository", usual.repository)

    def choose(self, name: str, rows: Any) -> None:
        """Offer ``rows`` for the field ``name``."""
        field = self.fields[name]
        assert isinstance(field, forms.ModelChoiceField)  # noqa: S101
        field.queryset = rows


def _prompt_field(**options: Any) -> forms.CharField:
    return forms.CharField(
        widget=forms.Textarea(attrs={"rows": 4}), max_length=TEXT_LIMIT, required=False, strip=False, **options
    )


class NewTask(_StartForm):
    """A task, its first prompt, and who is to work on it."""

    field_order = ("title", "description", "repository", "agent_profile", "executor")

    title = forms.CharField(max_length=300, label="Title")
    description = _prompt_field(label="What is to be done", help_text="This is the first prompt that the agent gets.")
    repository: forms.ModelChoiceField[Repository] = forms.ModelChoiceField(
        queryset=None, label="Repository", empty_label=None
    )

    def __init__(self, user: Any, *args: Any, **kwargs: Any):
        super().__init__(user, *args, **kwargs)
        self.choose(
            "repository",
            Repository.objects.visible_to(user).filter(team__in=writable_teams(user)).select_related("team"),
        )

    def clean(self) -> dict[str, Any]:
        """Refuse another team's agent profile."""
        values = super().clean() or {}
        repository, profile = values.get("repository"), values.get("agent_profile")
        if repository and profile and profile.team_id not in (None, repository.team_id):
            self.add_error("agent_profile", "This agent belongs to another team than the repository.")
        return values


class _WorktreeField(forms.ModelChoiceField):  # type: ignore[type-arg]  # no generic at run time
    """A session, told by its branch and place."""

    def label_from_instance(self, obj: TaskSession) -> str:
        """What people know its worktree by."""
        return f"{obj.worktree_branch or obj.worktree_path} on {obj.executor.name}"


class NewSession(_StartForm):
    """Another session on a task."""

    prompt = _prompt_field(label="First prompt", help_text="Without one the agent starts and waits.")
    worktree_of = _WorktreeField(
        queryset=None,
        label="Worktree",
        empty_label="A new one",
        required=False,
        help_text="An earlier session’s still holds what was not committed there. Whoever worked in it is stopped.",
    )
    field_order = ("prompt", "agent_profile", "executor", "worktree_of")

    def __init__(self, user: Any, task: Task, *args: Any, **kwargs: Any):
        super().__init__(user, *args, **kwargs)
        self.choose("agent_profile", profiles_for(task))
        owners = task.sessions.filter(shares_worktree_of=None, has_agent=True).exclude(worktree_path="")
        self.choose("worktree_of", owners.select_related("executor"))
        if not owners.exists():
            del self.fields["worktree_of"]

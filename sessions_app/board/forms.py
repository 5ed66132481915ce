"""The forms for new tasks and sessions."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Final

from django import forms
from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.forms.models import ModelChoiceIterator

from executors_app.models import AgentProfile, Executor
from sessions_app.accounts.authorization import writable_teams
from sessions_app.agents.services.profiles import enabled, profiles_for, visible_profiles
from sessions_app.board.services.tasks import BRANCH_PATTERN, DESCRIPTION_LIMIT, default_choice, oldest
from sessions_app.catalogue.services.offers import default_executor, offered_executors
from sessions_app.catalogue.services.repositories import preselected_repository, without_scratch
from sessions_app.kernel.services.errors import SessionsError
from sessions_app.models import Repository, Task, TaskSession
from sessions_app.prompts.rules.attachments import MAX_FILE_BYTES, MAX_FILES, MAX_TOTAL_BYTES, AttachedFile
from sessions_app.prompts.services import TEXT_LIMIT, check_files

MAX_WORKTREES_OFFERED: Final = 50
"""Maximum number of worktrees that the form for a new session offers: those of the newest sessions."""


class _ReadOnce(ModelChoiceIterator):  # type: ignore[type-arg]  # at run time it takes none
    """The choices of one form, read once: a select element asks for the first of them, and then for all."""

    def __iter__(self) -> Iterator[Any]:
        if not hasattr(self, "_choices"):
            self._choices = list(super().__iter__())
        return iter(self._choices)


class _StartForm(forms.Form):
    """Base of the forms that start a session: agent profile and executor."""

    agent_profile: forms.ModelChoiceField[AgentProfile] = forms.ModelChoiceField(
        queryset=None, label="Agent", empty_label=None
    )
    executor: forms.ModelChoiceField[Executor] = forms.ModelChoiceField(
        queryset=None, label="Executor", empty_label=None
    )

    any_of_pool = forms.BooleanField(
        label="Any executor of its pool",
        required=False,
        initial=True,
        help_text="If the executor belongs to a pool, the session starts on the one of the pool that fits best.",
    )

    def __init__(self, user: User, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.choose("agent_profile", enabled(visible_profiles(user)))
        self.choose("executor", offered_executors())
        if not offered_executors().exclude(pool="").exists():
            del self.fields["any_of_pool"]
        usual = default_choice(user)
        self.initial.setdefault("agent_profile", usual.profile or oldest(enabled(visible_profiles(user))))
        self.initial.setdefault("executor", usual.executor or default_executor())
        if "repository" in self.fields:
            self.initial.setdefault("repository", preselected_repository(user, usual.repository))

    @property
    def executor_pool(self) -> str:
        """The pool that places the session of a valid form; empty if its executor is fixed."""
        if self.cleaned_data.get("any_of_pool"):
            return str(self.cleaned_data["executor"].pool)
        return ""

    def choose(self, name: str, rows: Any) -> None:
        """Offer ``rows`` for the field ``name``."""
        field = self.fields[name]
        assert isinstance(field, forms.ModelChoiceField)  # noqa: S101
        field.iterator = _ReadOnce
        field.queryset = rows

    def offers(self, name: str) -> bool:
        """Return whether there is anything to choose for the field ``name``."""
        return any(True for _ in self.fields[name].widget.choices)


class _FilesInput(forms.FileInput):
    """A file input that takes several files, with the limits that ``attach.js`` checks before an upload."""

    allow_multiple_selected = True

    def __init__(self) -> None:
        super().__init__({"data-files": MAX_FILES, "data-bytes": MAX_TOTAL_BYTES, "data-file-bytes": MAX_FILE_BYTES})

    def value_from_datadict(self, data: Any, files: Any, name: str) -> list[Any]:
        """Return all files."""
        if hasattr(files, "getlist"):
            return list(files.getlist(name))
        return []


class _FilesField(forms.FileField):
    """The files of the first prompt."""

    def __init__(self) -> None:
        help_text = (
            f"Up to {MAX_FILES} images, text files or PDFs, {MAX_TOTAL_BYTES // 2**20} MB together. You can also paste "
            "them or drop them here. Some agents accept text files only."
        )
        super().__init__(required=False, widget=_FilesInput(), label="Files", help_text=help_text)

    def clean(self, data: Any, initial: Any = None) -> list[AttachedFile]:
        """Return the checked files. Raises ValidationError."""
        try:
            return check_files((each.name or "", each.read(), "") for each in data or ())
        except SessionsError as error:
            raise forms.ValidationError(error.message) from error


def _first_prompt(text: str) -> str:
    """Return an entered prompt with the line ends of text files; empty if it has only white space."""
    if not text.strip():
        return ""
    return text.replace("\r\n", "\n")


def _prompt_field(**options: Any) -> forms.CharField:
    return forms.CharField(
        widget=forms.Textarea(attrs={"rows": 4}), max_length=TEXT_LIMIT, required=False, strip=False, **options
    )


class TaskCreateForm(_StartForm):
    """The form for a new task with its first prompt, agent and executor."""

    field_order = (
        *("title", "description", "attachments", "repository", "base_branch"),
        *("agent_profile", "executor", "any_of_pool"),
    )

    title = forms.CharField(max_length=300, label="Title")
    description = _prompt_field(label="Description", help_text="The agent gets this as its first prompt.")
    attachments = _FilesField()
    repository: forms.ModelChoiceField[Repository] = forms.ModelChoiceField(
        queryset=None, label="Repository", empty_label=None
    )

    base_branch = forms.RegexField(
        BRANCH_PATTERN,
        label="Base branch",
        required=False,
        max_length=255,
        help_text="If empty, where new tasks of the repository start.",
        error_messages={"invalid": "This cannot be the name of a branch."},
    )

    def __init__(self, user: User, *args: Any, **kwargs: Any):
        super().__init__(user, *args, **kwargs)
        self.choose(
            "repository",
            without_scratch(
                Repository.objects.visible_to(user).filter(team__in=writable_teams(user)).select_related("team")
            ),
        )

    def clean(self) -> dict[str, Any]:
        """Refuse another team's agent profile, and files that no prompt would carry."""
        values = super().clean() or {}
        self._require_prompt_of_files(values)
        repository, profile = values.get("repository"), values.get("agent_profile")
        if repository and profile and profile.team_id not in (None, repository.team_id):
            self.add_error("agent_profile", "This agent profile belongs to a different team than the repository.")
        return values

    def _require_prompt_of_files(self, values: dict[str, Any]) -> None:
        if not values.get("attachments"):
            return
        if "only" in self.data:
            self.add_error("attachments", "Files are sent with the first prompt: create and start, or choose none.")
        elif "description" in values and not _first_prompt(values["description"]):
            self.add_error("description", "Files need a prompt that explains what to do with them.")

    @property
    def first_prompt(self) -> str:
        """The first prompt of a valid form; empty if there is none."""
        return _first_prompt(self.cleaned_data["description"])


class TaskTextForm(forms.Form):
    """The title, description and base branch of a task; the page shows them as ``exact`` texts, not by widgets."""

    title = forms.CharField(max_length=300)
    description = forms.CharField(max_length=DESCRIPTION_LIMIT, required=False, strip=False)
    base_branch = forms.RegexField(
        BRANCH_PATTERN,
        required=False,
        max_length=255,
        error_messages={"invalid": "The base branch cannot have this name."},
    )

    def clean_description(self) -> str:
        """Return the description with the line ends of text files."""
        return str(self.cleaned_data["description"]).replace("\r\n", "\n")


class _WorktreeField(forms.ModelChoiceField):  # type: ignore[type-arg]  # no generic at run time
    """A choice of sessions, labelled by the branch of their worktree."""

    def label_from_instance(self, obj: TaskSession) -> str:
        """Return the branch (or path) and the executor of the worktree."""
        return f"{obj.worktree_branch or obj.worktree_path} on {obj.executor.name}"

    def offer(self, sessions: Sequence[TaskSession]) -> None:
        """Show only the worktrees of these sessions; others that exist are still accepted."""
        self.choices = [("", self.empty_label), *((each.id, self.label_from_instance(each)) for each in sessions)]


class SessionCreateForm(_StartForm):
    """The form for another session of a task."""

    prompt = _prompt_field(label="First prompt", help_text="If empty, the agent starts and waits for a prompt.")
    attachments = _FilesField()
    worktree_of = _WorktreeField(
        queryset=None,
        label="Worktree",
        empty_label="New worktree",
        required=False,
        help_text="An earlier worktree keeps its uncommitted changes. The session that works in it is stopped.",
    )
    field_order = ("prompt", "attachments", "agent_profile", "executor", "any_of_pool", "worktree_of")

    def __init__(self, user: User, task: Task, *args: Any, **kwargs: Any):
        super().__init__(user, *args, **kwargs)
        self.choose("agent_profile", enabled(profiles_for(task)))
        owners = task.sessions.filter(shares_worktree_of=None, has_agent=True).exclude(worktree_path="")
        offered = _offered_worktrees(owners.select_related("executor"), self.initial.get("worktree_of"))
        if not offered:
            del self.fields["worktree_of"]
            return
        # Every worktree is accepted: newer sessions may have displaced one that the form offered.
        self.choose("worktree_of", owners.select_related("executor"))
        field = self.fields["worktree_of"]
        assert isinstance(field, _WorktreeField)  # noqa: S101
        field.offer(offered)

    @property
    def first_prompt(self) -> str:
        """The first prompt of a valid form; empty if there is none."""
        return _first_prompt(self.cleaned_data["prompt"])


def _offered_worktrees(owners: QuerySet[TaskSession], chosen: uuid.UUID | None) -> list[TaskSession]:
    """Return the newest sessions that own a worktree, and the one with the id ``chosen``, however old it is."""
    offered = list(owners.order_by("-created_at", "id")[:MAX_WORKTREES_OFFERED])
    if chosen is not None and chosen not in {owner.id for owner in offered}:
        offered += owners.filter(id=chosen)
    return offered

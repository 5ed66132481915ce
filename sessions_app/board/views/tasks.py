"""The page of one task, and the forms for new tasks and sessions."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from django import forms
from django.contrib import messages
from django.contrib.auth.models import User
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import Http404, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from executors_app.models import AgentProfile, Executor
from sessions_app.accounts.authorization import may_write, writable_teams
from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.agents.services.profiles import profiles_for, visible_profiles
from sessions_app.board.services import tasks
from sessions_app.board.services.board import annotate_needs, session_rows
from sessions_app.board.services.tasks import create_session_with_defaults, default_choice
from sessions_app.catalogue.services.repositories import without_scratch
from sessions_app.kernel.rules.parsers import parse_uuid
from sessions_app.kernel.services.errors import SessionsError
from sessions_app.models import Repository, Task, TaskSession
from sessions_app.pages.labels import TASK_STATE_LABELS
from sessions_app.pages.shortcuts import find_task, part_response, queried_number
from sessions_app.prompts.rules.attachments import MAX_FILES, MAX_TOTAL_BYTES, AttachedFile
from sessions_app.prompts.services.attachments import check_files
from sessions_app.sessions.rules.situation_facts import TASK_ENDS
from sessions_app.sessions.services.intents import TEXT_LIMIT
from sessions_app.sessions.services.queries import SECRET_FIELDS
from sessions_app.sessions.views.session_summary import session_chips
from sessions_app.sessions.views.sessions import run_and_redirect
from sessions_app.workflows.services.runs import run_of_task

SESSIONS_PER_PAGE: Final = 50
"""Maximum number of sessions on one page of a task, and of worktrees that the form for a new session offers."""


class _StartForm(forms.Form):
    """Base of the forms that start a session: agent profile and executor."""

    agent_profile: forms.ModelChoiceField[AgentProfile] = forms.ModelChoiceField(
        queryset=None, label="Agent", empty_label=None
    )
    executor: forms.ModelChoiceField[Executor] = forms.ModelChoiceField(
        queryset=None, label="Executor", empty_label=None
    )

    def __init__(self, user: User, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.choose("agent_profile", visible_profiles(user))
        self.choose("executor", Executor.objects.all())
        usual = default_choice(user)
        self.initial = {"agent_profile": usual.profile, "executor": usual.executor, **self.initial}
        if "repository" in self.fields:
            self.initial.setdefault("repository", usual.repository)

    def choose(self, name: str, rows: Any) -> None:
        """Offer ``rows`` for the field ``name``."""
        field = self.fields[name]
        assert isinstance(field, forms.ModelChoiceField)  # noqa: S101
        field.queryset = rows


class _FilesInput(forms.FileInput):
    """A file input that takes several files, with the limits that ``attach.js`` checks before an upload."""

    allow_multiple_selected = True

    def __init__(self) -> None:
        super().__init__({"data-files": MAX_FILES, "data-bytes": MAX_TOTAL_BYTES})

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


def _prompt_field(**options: Any) -> forms.CharField:
    return forms.CharField(
        widget=forms.Textarea(attrs={"rows": 4}), max_length=TEXT_LIMIT, required=False, strip=False, **options
    )


class TaskCreateForm(_StartForm):
    """The form for a new task with its first prompt, agent and executor."""

    field_order = ("title", "description", "attachments", "repository", "agent_profile", "executor")

    title = forms.CharField(max_length=300, label="Title")
    description = _prompt_field(label="Description", help_text="The agent gets this as its first prompt.")
    attachments = _FilesField()
    repository: forms.ModelChoiceField[Repository] = forms.ModelChoiceField(
        queryset=None, label="Repository", empty_label=None
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
        """Refuse another team's agent profile."""
        values = super().clean() or {}
        repository, profile = values.get("repository"), values.get("agent_profile")
        if repository and profile and profile.team_id not in (None, repository.team_id):
            self.add_error("agent_profile", "This agent profile belongs to a different team than the repository.")
        return values


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
    field_order = ("prompt", "attachments", "agent_profile", "executor", "worktree_of")

    def __init__(self, user: User, task: Task, *args: Any, **kwargs: Any):
        super().__init__(user, *args, **kwargs)
        self.choose("agent_profile", profiles_for(task))
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


def _offered_worktrees(owners: QuerySet[TaskSession], chosen: uuid.UUID | None) -> list[TaskSession]:
    """Return the newest sessions that own a worktree, and the one with the id ``chosen``, however old it is."""
    offered = list(owners.order_by("-created_at", "id")[:SESSIONS_PER_PAGE])
    if chosen is not None and chosen not in {owner.id for owner in offered}:
        offered += owners.filter(id=chosen)
    return offered


TASK_CHANGES: Final[Mapping[str, Callable[[Task, Any], Task]]] = {
    "done": tasks.finish_task,
    "cancel": tasks.cancel_task,
    "reopen": tasks.reopen_task,
    "archive": tasks.archive_task,
    "unarchive": tasks.unarchive_task,
}


@never_cache
def show_task(request: UserHttpRequest, task_id: uuid.UUID) -> HttpResponse:
    """Show the task and its newest sessions; ``?page=NUMBER`` shows older ones. A POST creates a session on it."""
    row = find_task(request, task_id)
    # The first session is suggested the description of the task as its prompt.
    initial = {"prompt": tasks.first_prompt(row)}
    initial |= _session_to_take_over(request, row)
    form = SessionCreateForm(request.user, row, request.POST or None, request.FILES or None, initial=initial)
    if request.method == "POST" and form.is_valid():
        values = form.cleaned_data
        text = values["prompt"].replace("\r\n", "\n")
        try:
            made = tasks.create_session(
                request.user,
                row,
                values["agent_profile"],
                values["executor"],
                prompt=text if text.strip() else "",
                files=values["attachments"],
                worktree_of=values.get("worktree_of"),
            )
        except SessionsError as error:
            messages.error(request, error.message)
        else:
            return redirect("session", row.id, made.id)
    context = {
        "form": form,
        "reads_only": not may_write(request.user, row.team_id),
        "workflow_run": run_of_task(row),
        **sessions_context(row, request.user, queried_number(request, "page")),
    }
    return render(request, "board/task.html", context, status=422 if form.errors else 200)


def _session_to_take_over(request: UserHttpRequest, row: Task) -> dict[str, Any]:
    """Return the session that owns the worktree named by ``?worktree_of=``, with its executor.

    Only that executor has the worktree.
    """
    wanted = row.sessions.filter(id=parse_uuid(request.GET.get("worktree_of", ""))).first()  # type: ignore[misc]
    if wanted:
        return {"worktree_of": wanted.worktree_owner_id, "executor": wanted.executor_id}
    return {}


def sessions_context(row: Task, user: User, number: int | None = None) -> dict[str, Any]:
    """Return a task and one page of its sessions, newest first; the number of queries is constant.

    The first page has the ``number`` 1. A number after the last page means the last one.
    """
    # Only the ids of all sessions are sorted: what the page shows of a session takes a dozen subqueries.
    ids = row.sessions.order_by("-created_at", "id").values_list("id", flat=True)
    page = Paginator(ids, SESSIONS_PER_PAGE).get_page(number or 1)
    rows = annotate_needs(TaskSession.objects.visible_to(user).filter(id__in=list(page)), user)
    shown = rows.select_related("task", "agent_profile", "executor").defer(*SECRET_FIELDS)
    sessions = list(shown.order_by("-created_at", "id"))
    described = session_rows(sessions)
    return {
        "task": row,
        "word": TASK_STATE_LABELS[row.state],
        "over": TASK_ENDS.get(row.end),
        "page": page,
        "sessions": [session_chips(described[session.id]) for session in sessions],
    }


@require_POST
def act_on_task(request: UserHttpRequest, task_id: uuid.UUID, what: str) -> HttpResponse:
    """Carry out one of ``TASK_CHANGES``, or ``start`` a session with the user's defaults; 404 for anything else."""
    row = find_task(request, task_id)
    if what == "start":
        return _start_default_session(request, row)
    if what not in TASK_CHANGES:
        raise Http404(what)
    return run_and_redirect(request, lambda: TASK_CHANGES[what](row, request.user), "task", row.id)


def _start_default_session(request: UserHttpRequest, row: Task) -> HttpResponse:
    """Start a session with the user's default agent and executor, and the task's description as its first prompt."""
    try:
        made = create_session_with_defaults(request.user, row)
    except SessionsError as error:
        messages.error(request, error.message)
        return redirect("task", row.id)
    return redirect("session", row.id, made.id)


@never_cache
@require_GET
def task_updates(request: UserHttpRequest, task_id: uuid.UUID) -> JsonResponse:
    """Return the current sessions of a task; ``?page=`` as on its page."""
    context = sessions_context(find_task(request, task_id), request.user, queried_number(request, "page"))
    return part_response("sessions", "board/task_sessions.html", context)

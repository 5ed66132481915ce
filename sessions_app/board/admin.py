"""Admin pages of tasks and sessions, with the session actions resume, stop and sweep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from executors_app.models import ExecutorRunning
from executors_app.staff_admin import StaffModelAdmin, words_filter
from executors_app.wire.errors import ExecutorError
from sessions_app.kernel.admin import TeamPageMixin, session_page
from sessions_app.kernel.rules.states import ENDED_STATES
from sessions_app.kernel.rules.wording import plural
from sessions_app.kernel.services.errors import SessionsError, TerminalState
from sessions_app.models import IntentKind, Task, TaskSession
from sessions_app.pages.labels import POLICY_CHOICES, POLICY_WORDS, TASK_STATE_LABELS
from sessions_app.recovery.services.sweeps import request_sweep
from sessions_app.sessions.rules.situation_facts import STATE_LABELS
from sessions_app.sessions.services import intents
from sessions_app.sessions.services.queries import SECRET_FIELDS

MAX_REASONS_SHOWN: Final = 10
"""Maximum number of refusals that are shown in detail."""

SessionRequest = Callable[[TaskSession, Any], str]
"""Requests something of a session for a user; returns why that was refused, or an empty string."""


class SessionActionsMixin(StaffModelAdmin):
    """Actions on the selected sessions: resume, stop, sweep now."""

    actions = ("resume", "stop", "sweep_now")

    @admin.action(description="Resume selected sessions", permissions=["change"])
    def resume(self, request: HttpRequest, queryset: QuerySet[TaskSession]) -> None:
        """Resume each session, as *Resume session* on its page does."""
        self._ask(request, queryset, _request_resume, "asked to resume")

    @admin.action(description="Stop selected sessions", permissions=["change"])
    def stop(self, request: HttpRequest, queryset: QuerySet[TaskSession]) -> None:
        """Stop each session; it can be resumed later."""
        self._ask(request, queryset, _request_stop, "asked to stop")

    @admin.action(description="Sweep selected sessions now", permissions=["change"])
    def sweep_now(self, request: HttpRequest, queryset: QuerySet[TaskSession]) -> None:
        """Request a sweep of the selected sessions."""
        ids = list(queryset.values_list("id", flat=True))
        sweep = request_sweep(cast(User, request.user), sessions=ids)
        text = f"Requested sweep {sweep.id} of {_session_count_text(len(ids))}. Open the request to see its result."
        self.message_user(request, text, messages.SUCCESS)

    def _ask(self, request: HttpRequest, queryset: QuerySet[TaskSession], ask: SessionRequest, done: str) -> None:
        count, refused = 0, []
        for session in queryset.select_related("task", "agent_profile", "executor"):
            try:
                reason = ask(session, request.user)
            except (SessionsError, ExecutorError) as error:
                reason = error.message
            if reason:
                refused.append(f"{session} ({session.task}): {reason}")
            else:
                count += 1
                self.log_change(request, session, done.capitalize())
        self._report(request, f"{_session_count_text(count)} {done}", count, refused)

    def _report(self, request: HttpRequest, done: str, count: int, refused: list[str]) -> None:
        summary = f"{done}."
        if refused:
            summary = f"{done}, {len(refused)} refused."
        level = messages.WARNING
        if count:
            level = messages.SUCCESS
        self.message_user(request, summary, level)
        for line in refused[:MAX_REASONS_SHOWN]:
            self.message_user(request, line, messages.WARNING)
        if len(refused) > MAX_REASONS_SHOWN:
            self.message_user(request, f"… and {len(refused) - MAX_REASONS_SHOWN} more.", messages.WARNING)


def _session_count_text(count: int) -> str:
    return plural(count, "1 session", "{} sessions")


def _request_resume(session: TaskSession, user: User) -> str:
    intents.request_resume(session.id, user)
    ordered = session.intents.filter(kind=IntentKind.START, done_at=None).exists()
    if ordered:
        return ""
    return "The session is already running."


def _request_stop(session: TaskSession, user: User) -> str:
    if session.state in ENDED_STATES:
        raise TerminalState
    intents.request_stop(session.id, user)
    return ""


RELATED_LISTS: Final = (
    ("executors_app_executorrunning", "executions"),
    ("sessions_app_prompt", "prompts"),
    ("sessions_app_turn", "turns and waits"),
    ("sessions_app_waitkey", "keys of waits"),
    ("sessions_app_permissionrequest", "permission requests"),
    ("sessions_app_suspension", "suspensions"),
    ("sessions_app_backgroundwork", "background work"),
    ("sessions_app_attentionitem", "inbox items"),
    ("sessions_app_continuityreceipt", "receipts"),
    ("sessions_app_sweepoutcome", "sweep outcomes"),
    ("sessions_app_intent", "requests"),
    ("sessions_app_finishintent", "merges and pushes"),
    ("workflows_noderun", "steps of workflows"),
    ("sessions_app_message", "messages"),
    ("sessions_app_sessionevent", "log"),
)
"""Lists of the rows of a session, and what the links to them say."""
TASK_LISTS: Final = (
    ("sessions_app_tasksession", "sessions"),
    ("executors_app_executorrunning", "executions"),
    ("workflows_workflowrun", "workflow runs"),
    ("sessions_app_taskplan", "plan"),
    ("sessions_app_tasklabel", "labels"),
)
"""Lists of the rows of a task."""
_STATE_WORDS: Final = {str(state): label.text for state, label in STATE_LABELS.items()}
_TASK_WORDS: Final = {str(state): label.text for state, label in TASK_STATE_LABELS.items()}


def _list_links(lists: Sequence[tuple[str, str]], query: str, key: Any) -> SafeString:
    """Return links to lists of the admin, each with the rows that a query finds for a key."""
    links = [(reverse(f"admin:{name}_changelist"), query, key, text) for name, text in lists]
    return format_html_join(" · ", '<a href="{}?{}={}">{}</a>', links)


class ServiceManagedAdmin(StaffModelAdmin):
    """Base class of pages for rows that only a service creates and deletes."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return False: a service does this."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False: a service does this."""
        return False


@admin.register(Task)
class TaskAdmin(TeamPageMixin, ServiceManagedAdmin):
    """Tasks, whose state follows from their sessions."""

    list_display = (
        "title",
        "page_link",
        "team",
        "state_words",
        "repository",
        "created_by",
        "created_at",
        "archived_at",
    )
    list_filter = (
        ("state", words_filter(_TASK_WORDS)),
        "team",
        ("archived_at", admin.EmptyFieldListFilter),
        "repository",
    )
    list_select_related = ("team", "repository", "created_by")
    search_fields = ("id", "title", "description", "team__name")
    date_hierarchy = "created_at"
    fields = (
        "more",
        "id",
        "title",
        "description",
        "team",
        "repository",
        "base_branch",
        "state_words",
        "archived_at",
        "created_by",
        "created_at",
        "updated_at",
    )
    readonly_fields = tuple(name for name in fields if name not in {"title", "description"})

    def page_of(self, task: Task) -> str:
        """Return the task's page."""
        return reverse("task", args=[task.id])

    @admin.display(description="state", ordering="state")
    def state_words(self, task: Task) -> str:
        """Return the state as our pages show it."""
        return _TASK_WORDS.get(task.state, task.state)

    @admin.display(description="belongs to it")
    def more(self, task: Task) -> SafeString:
        """Return links to the rows that belong to the task."""
        return _list_links(TASK_LISTS, "task__id__exact", task.id)


@admin.register(TaskSession)
class TaskSessionAdmin(SessionActionsMixin, TeamPageMixin, ServiceManagedAdmin):
    """Sessions and the actions on them; only their policy can be edited."""

    list_display = (
        "short_id",
        "page_link",
        "task",
        "team",
        "state_words",
        "work_state",
        "desired_state",
        "executor_status",
        "agent_profile",
        "executor",
        "policy_words",
        "error_code",
        "updated_at",
    )
    list_filter = (
        ("state", words_filter(_STATE_WORDS)),
        "error_code",
        "desired_state",
        "work_state",
        ("policy", words_filter(POLICY_WORDS)),
        "agent_profile",
        "executor",
        ("task__team", admin.RelatedOnlyFieldListFilter),
    )
    list_select_related = ("task__team", "agent_profile", "executor")
    search_fields = ("id", "task__title", "agent_profile__name", "worktree_branch", "error_message")
    date_hierarchy = "created_at"
    page_team = "task__team"
    groups: tuple[tuple[str | None, tuple[str, ...]], ...] = (
        (None, ("more", "task", "agent_profile", "model", "executor", "owner", "created_at", "updated_at")),
        ("After a restart", ("policy", "continue_prompts")),
        ("State", ("state_words", "desired_state", "work_state", "error_code", "error_message", "ready_since")),
        ("Worktree", ("worktree_path", "worktree_branch", "shares_worktree_of")),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[TaskSession]:
        """Return the sessions with the status of their current execution, and without secrets."""
        status = ExecutorRunning.objects.filter(id=OuterRef("agent_execution_id")).values("status")
        rows: QuerySet[TaskSession] = super().get_queryset(request)
        return rows.defer(*SECRET_FIELDS).annotate(executor_status=Subquery(status))

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Return all fields in groups, those that can be edited near the top."""
        grouped = {name for _title, names in self.groups for name in names}
        rest = [field.name for field in self.opts.concrete_fields if field.name not in {*grouped, "state"}]
        named = [(title, {"fields": names}) for title, names in self.groups]
        return [*named, ("More of its record", {"fields": rest, "classes": ("collapse",)})]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[Any]:
        """Return all fields except the restart settings."""
        shown = [name for _title, group in self.get_fieldsets(request, obj) for name in group["fields"]]
        return [name for name in shown if name not in {"policy", "continue_prompts"}]

    def formfield_for_choice_field(self, db_field: Any, request: HttpRequest, **options: Any) -> Any:
        """Offer the policies as our pages name them."""
        if db_field.name == "policy":
            options["choices"] = POLICY_CHOICES
        return super().formfield_for_choice_field(db_field, request, **options)

    def page_of(self, session: TaskSession) -> str:
        """Return the session's page."""
        return session_page(session)

    @admin.display(description="state", ordering="state")
    def state_words(self, session: TaskSession) -> str:
        """Return the state as our pages show it."""
        return _STATE_WORDS.get(session.state, session.state)

    @admin.display(description="after a restart", ordering="policy")
    def policy_words(self, session: TaskSession) -> str:
        """Return the session's own policy as our pages show it."""
        return POLICY_WORDS.get(session.policy, "–")

    @admin.display(description="session", ordering="id")
    def short_id(self, session: TaskSession) -> str:
        """Return the short id that logs and commands show."""
        return str(session.id)[:8]

    @admin.display(ordering="task__team__name")
    def team(self, session: TaskSession) -> str:
        """Return the team of the session's task."""
        return str(session.task.team)

    @admin.display(ordering="executor_status")
    def executor_status(self, session: Any) -> str:
        """Return the status of the current execution."""
        return session.executor_status or "–"

    @admin.display(description="belongs to it")
    def more(self, session: TaskSession) -> SafeString:
        """Return links to the rows that belong to the session."""
        return _list_links(RELATED_LISTS, "session__id__exact", session.id)

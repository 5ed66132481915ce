"""Tasks, their sessions, and the repositories that staff opened to teams."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from executors_app.models import ExecutorRunning
from executors_app.staff_admin import Form, StaffOnly
from sessions_app.admin.orders import SessionOrders
from sessions_app.models import Repository, Task, TaskSession
from sessions_app.services import catalogue
from sessions_app.services.errors import Invalid

PARTS = ("intent", "prompt", "run", "sessionevent", "message", "permissionrequest", "continuityreceipt", "sweepoutcome")


class NeitherMadeNorForgotten(StaffOnly):
    """Rows that come and go by a service, which writes what belongs to them too."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Nobody."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody."""
        return False


@admin.register(Task)
class TaskAdmin(NeitherMadeNorForgotten):
    """What teams want done. Its state follows from its sessions'."""

    list_display = ("title", "team", "state", "repository", "created_by", "created_at", "archived_at")
    list_filter = ("state", "team", ("archived_at", admin.EmptyFieldListFilter), "repository")
    list_select_related = ("team", "repository", "created_by")
    search_fields = ("id", "title", "description", "team__name")
    date_hierarchy = "created_at"
    fields = (
        "id",
        "title",
        "description",
        "team",
        "repository",
        "base_branch",
        "state",
        "archived_at",
        "created_by",
        "created_at",
        "updated_at",
    )
    readonly_fields = tuple(name for name in fields if name not in {"title", "description"})


@admin.register(TaskSession)
class TaskSessionAdmin(SessionOrders, NeitherMadeNorForgotten):
    """Sessions: what they are up to, and what can be asked of them. Of the row only its policy can be edited."""

    list_display = (
        "short_id",
        "task",
        "team",
        "state",
        "work_state",
        "desired_state",
        "executor_status",
        "agent_profile",
        "executor",
        "policy",
        "error_code",
        "updated_at",
    )
    list_filter = (
        "state",
        "desired_state",
        "work_state",
        "policy",
        "agent_profile",
        "executor",
        ("task__team", admin.RelatedOnlyFieldListFilter),
    )
    list_select_related = ("task__team", "agent_profile", "executor")
    search_fields = ("id", "task__title", "agent_profile__name", "worktree_branch", "error_message")
    date_hierarchy = "created_at"
    fields = ("more", "policy", "continue_prompts")

    def get_queryset(self, request: HttpRequest) -> QuerySet[TaskSession]:
        """With the status of the present execution, and without secrets."""
        status = ExecutorRunning.objects.filter(id=OuterRef("agent_execution_id")).values("status")
        rows: QuerySet[TaskSession] = super().get_queryset(request)
        return rows.defer(*catalogue.SECRETS).annotate(executor_status=Subquery(status))

    def get_fields(self, request: HttpRequest, obj: Any = None) -> list[Any]:
        """Everything of the row; its policy first, for that can be edited."""
        rest = [field.name for field in self.opts.concrete_fields if field.name not in self.fields]
        return [*self.fields, *rest]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[Any]:
        """All but its policy and whether it is told to continue."""
        return [name for name in self.get_fields(request, obj) if name not in {"policy", "continue_prompts"}]

    @admin.display(description="session", ordering="id")
    def short_id(self, session: TaskSession) -> str:
        """As logs and commands show it."""
        return str(session.id)[:8]

    @admin.display(ordering="task__team__name")
    def team(self, session: TaskSession) -> str:
        """Its task's team."""
        return str(session.task.team)

    @admin.display(ordering="executor_status")
    def executor_status(self, session: Any) -> str:
        """Of its present execution."""
        return session.executor_status or "–"

    @admin.display(description="more")
    def more(self, session: TaskSession) -> SafeString:
        """Ways to what belongs to it."""
        links = [(reverse(f"admin:sessions_app_{part}_changelist"), session.id, part) for part in PARTS]
        return format_html_join(" · ", '<a href="{}?session__id__exact={}">{}s</a>', links)


class RepositoryForm(Form):
    """A repository; a new one has to be where the deployment allows it (rule 38)."""

    class Meta:
        model = Repository
        fields = ("name", "team", "path", "default_branch")

    def clean_path(self) -> str:
        """The real path of a git repository; ValidationError for anything else."""
        try:
            return str(catalogue.usable_repository(self.cleaned_data["path"]))
        except Invalid as error:
            raise forms.ValidationError(error.message) from error


@admin.register(Repository)
class RepositoryAdmin(StaffOnly):
    """The repositories that staff opened to teams; which and to whom is settled when it is added."""

    form = RepositoryForm
    list_display = ("name", "team", "path", "default_branch", "created_at")
    list_filter = ("team",)
    list_select_related = ("team",)
    search_fields = ("id", "name", "path", "team__name")
    date_hierarchy = "created_at"
    fields = ("name", "team", "path", "default_branch")

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        """Tasks work there: neither team nor path change."""
        return ("team", "path", "created_at") if obj else ()

    def get_fields(self, request: HttpRequest, obj: Any = None) -> list[Any]:
        """A row has a date, too."""
        return [*self.fields, "created_at"] if obj else [*self.fields]

    def save_model(self, request: HttpRequest, obj: Repository, form: Form, change: bool) -> None:
        """Without a branch it is the one that is checked out."""
        if not obj.default_branch and not change:
            obj.default_branch = catalogue.checked_out(Path(obj.path))
        super().save_model(request, obj, form, change)

"""Workflows, runs and node runs in the admin: read-only, because the editor checks the text."""

from __future__ import annotations

from django.contrib import admin
from django.urls import reverse

from executors_app.staff_admin import ReadOnlyModelAdmin
from sessions_app.kernel.admin import TeamPageMixin
from sessions_app.workflows.models import NodeRun, Workflow, WorkflowRun


@admin.register(Workflow)
class WorkflowAdmin(TeamPageMixin, ReadOnlyModelAdmin):
    """Workflows of all teams."""

    list_display = (
        "name",
        "team",
        "revision",
        "is_valid",
        "triggers_enabled",
        "triggers_enabled_by",
        "next_run_at",
        "archived_at",
    )
    list_filter = ("is_valid", "triggers_enabled", ("archived_at", admin.EmptyFieldListFilter), "team")
    list_select_related = ("team", "triggers_enabled_by")
    hidden = ("confirmed",)
    search_fields = ("=id", "name", "description", "team__name")
    date_hierarchy = "updated_at"
    ordering = ("name", "id")

    def page_of(self, workflow: Workflow) -> str:
        """Return the workflow's page."""
        return reverse("workflow", args=[workflow.id])


@admin.register(WorkflowRun)
class WorkflowRunAdmin(TeamPageMixin, ReadOnlyModelAdmin):
    """Workflow runs, newest first."""

    list_display = ("created_at", "name", "team", "state", "trigger", "task", "started_by", "owner", "ended_at")
    list_filter = ("state", "trigger", "team")
    list_select_related = ("team", "task", "started_by")
    search_fields = ("=id", "=workflow__id", "=task__id", "name", "error")
    date_hierarchy = "created_at"
    ordering = ("-created_at", "id")
    hidden = ("idempotency_key", "asked")

    def page_of(self, run: WorkflowRun) -> str:
        """Return the run's page."""
        return reverse("workflow-run", args=[run.id])


@admin.register(NodeRun)
class NodeRunAdmin(TeamPageMixin, ReadOnlyModelAdmin):
    """Steps of runs, newest first."""

    page_team = "run__team"
    list_display = ("started_at", "run", "path", "kind", "state", "waiting_for", "attempt", "session", "ended_at")
    list_filter = ("state", "kind", "waiting_for")
    list_select_related = ("run", "session__task")
    search_fields = ("=run__id", "=session__id", "path", "message_id", "job_id", "error")
    date_hierarchy = "started_at"
    ordering = ("-id",)

    def page_of(self, step: NodeRun) -> str:
        """Return the page of its run."""
        return reverse("workflow-run", args=[step.run_id])

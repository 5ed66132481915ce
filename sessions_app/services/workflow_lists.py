"""The workflows and runs that a user sees."""

from __future__ import annotations

from typing import Any

from django.db.models import OuterRef, QuerySet, Subquery

from sessions_app.models import Task, Workflow, WorkflowRun


def visible_workflows(user: Any) -> QuerySet[Workflow]:
    """The workflows of the user's teams, each with its ``last_run_id``, ``last_run_state`` and ``last_run_at``."""
    runs = WorkflowRun.objects.filter(workflow=OuterRef("pk")).order_by("-created_at")
    found: QuerySet[Workflow] = Workflow.objects.visible_to(user).select_related("team", "repository")
    return found.defer("confirmed").annotate(
        last_run_id=Subquery(runs.values("id")[:1]),
        last_run_state=Subquery(runs.values("state")[:1]),
        last_run_at=Subquery(runs.values("created_at")[:1]),
    )


def visible_runs(user: Any) -> QuerySet[WorkflowRun]:
    """The runs of the user's teams, newest first, without their texts."""
    found: QuerySet[WorkflowRun] = WorkflowRun.objects.visible_to(user).defer("text", "files", "inputs", "outputs")
    return found.select_related("team")


def run_of(task: Task) -> WorkflowRun | None:
    """The run that a task is for, by its id and name; None for a task of somebody's."""
    return WorkflowRun.objects.filter(task=task).only("id", "name").first()

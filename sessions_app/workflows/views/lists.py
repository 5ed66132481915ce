"""Lists of workflows and of runs."""

from __future__ import annotations

from typing import Any, Final

from django.contrib.auth.models import User
from django.http import HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_safe

from sessions_app.accounts.authorization import may_write_somewhere
from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.hosts.services import worker_down_since
from sessions_app.pages.shortcuts import part_response
from sessions_app.workflows.examples import shipped_examples
from sessions_app.workflows.labels import RUN_STATE_LABELS, TRIGGER_LABELS
from sessions_app.workflows.models import Workflow, WorkflowRun
from sessions_app.workflows.services.runs import visible_runs
from sessions_app.workflows.services.workflows import visible_workflows

MAX_WORKFLOWS_SHOWN: Final = 200
MAX_RUNS_SHOWN: Final = 20
"""Rows on a page: the first workflows, and the newest runs."""


@never_cache
@require_safe
def list_workflows(request: UserHttpRequest) -> HttpResponse:
    """Show the workflows of the user's teams with their last runs; the archived ones with ``?archived=1``."""
    context = list_context(request.user, archived=bool(request.GET.get("archived")))
    context["may_write"] = may_write_somewhere(request.user)
    context["examples"] = shipped_examples()
    context["worker_down_since"] = worker_down_since()
    return render(request, "workflows/list.html", context)


def list_context(user: User, *, archived: bool = False) -> dict[str, Any]:
    """Return the context of ``workflows/list_rows.html``, with a constant number of queries."""
    listed = visible_workflows(user).filter(archived_at__isnull=not archived).defer("text", "files")
    workflows = list(listed[: MAX_WORKFLOWS_SHOWN + 1])
    file_runs = [] if archived else newest_runs(user, None)
    return {
        "archived": archived,
        "rows": [_workflow_row(workflow) for workflow in workflows[:MAX_WORKFLOWS_SHOWN]],
        "more": len(workflows) > MAX_WORKFLOWS_SHOWN,
        "file_runs": file_runs,
    }


def _workflow_row(workflow: Workflow) -> dict[str, Any]:
    last_run_state = workflow.last_run_state  # type: ignore[attr-defined]
    return {"workflow": workflow, "label": RUN_STATE_LABELS.get(last_run_state)}


def newest_runs(user: User, workflow: Workflow | None) -> list[dict[str, Any]]:
    """Return the newest runs of a workflow with their labels; without a workflow, of files."""
    runs = visible_runs(user).filter(workflow=workflow)[:MAX_RUNS_SHOWN]
    return [_run_row(run) for run in runs.select_related("started_by")]


def _run_row(run: WorkflowRun) -> dict[str, Any]:
    return {"run": run, "label": RUN_STATE_LABELS[run.state], "by": TRIGGER_LABELS[run.trigger]}


@never_cache
@require_GET
def workflow_list_updates(request: UserHttpRequest) -> JsonResponse:
    """Return the current list of workflows as HTML."""
    context = list_context(request.user, archived=bool(request.GET.get("archived")))
    return part_response("workflows", "workflows/list_rows.html", context)

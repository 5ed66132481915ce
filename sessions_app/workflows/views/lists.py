"""Lists of workflows and of runs."""

from __future__ import annotations

from typing import Any, Final

from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.http import HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_safe

from sessions_app.accounts.authorization import may_write_somewhere
from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.pages.shortcuts import part_response
from sessions_app.workflows.examples import EXAMPLES, find_example
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
    archived = bool(request.GET.get("archived"))
    context = {
        **list_context(request.user, archived=archived),
        "may_write": may_write_somewhere(request.user),
        "examples": [found for slug, _ in EXAMPLES if (found := find_example(slug)).slug],
    }
    return render(request, "workflows/list.html", context)


def list_context(user: User, *, archived: bool = False) -> dict[str, Any]:
    """Return the context of ``workflows/list_rows.html``, with a constant number of queries."""
    rows = visible_workflows(user).filter(archived_at__isnull=not archived).defer("text", "files")
    file_runs = visible_runs(user).filter(workflow=None)[:MAX_RUNS_SHOWN]
    found = list(rows[: MAX_WORKFLOWS_SHOWN + 1])
    return {
        "archived": archived,
        "rows": [
            {"workflow": row, "label": RUN_STATE_LABELS.get(row.last_run_state)}  # type: ignore[attr-defined]
            for row in found[:MAX_WORKFLOWS_SHOWN]
        ],
        "more": len(found) > MAX_WORKFLOWS_SHOWN,
        "file_runs": [] if archived else run_rows(file_runs),
    }


def runs_context(user: User, row: Workflow) -> dict[str, Any]:
    """Return the newest runs of a workflow for its page."""
    return {"runs": run_rows(visible_runs(user).filter(workflow=row)[:MAX_RUNS_SHOWN])}


def run_rows(runs: QuerySet[WorkflowRun]) -> list[dict[str, Any]]:
    """Return runs with their labels, for lists."""
    return [
        {"run": run, "label": RUN_STATE_LABELS[run.state], "by": TRIGGER_LABELS[run.trigger]}
        for run in runs.select_related("started_by")
    ]


@never_cache
@require_GET
def workflow_list_updates(request: UserHttpRequest) -> JsonResponse:
    """Return the current list of workflows as HTML."""
    context = list_context(request.user, archived=bool(request.GET.get("archived")))
    return part_response("workflows", "workflows/list_rows.html", context)

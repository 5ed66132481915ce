"""The list of workflows, and the runs of one."""

from __future__ import annotations

from typing import Any, Final

from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from sessions_app.models import Workflow, WorkflowRun
from sessions_app.services.rights import may_write_somewhere
from sessions_app.services.workflow_lists import visible_runs, visible_workflows
from sessions_app.views.workflows.examples import examples
from sessions_app.views.workflows.words import RUN_STATES, TRIGGERS

SHOWN: Final = 200
RUNS_SHOWN: Final = 20
"""Rows on a page, the first or the newest."""


@never_cache
@require_safe
def workflows(request: HttpRequest) -> HttpResponse:
    """Show the workflows of the user's teams with their last runs; ``?archived=1`` those that were put away."""
    away = bool(request.GET.get("archived"))
    context = {**list_context(request.user, away=away), "writes": may_write_somewhere(request.user)}
    return render(request, "workflows/list.html", {**context, "examples": examples()})


def list_context(user: Any, *, away: bool = False) -> dict[str, Any]:
    """For ``workflows/list_rows.html``; a constant number of queries."""
    rows = visible_workflows(user).filter(archived_at__isnull=not away).defer("text", "files")
    loose = visible_runs(user).filter(workflow=None)[:RUNS_SHOWN]
    found = list(rows[: SHOWN + 1])
    return {
        "away": away,
        "rows": [{"workflow": row, "word": _last(row)} for row in found[:SHOWN]],
        "more": len(found) > SHOWN,
        "loose_runs": [] if away else run_rows(loose),
    }


def _last(row: Workflow) -> Any:
    return RUN_STATES.get(getattr(row, "last_run_state", None) or "")


def runs_context(user: Any, row: Workflow) -> dict[str, Any]:
    """The newest runs of a workflow."""
    return {"runs": run_rows(visible_runs(user).filter(workflow=row)[:RUNS_SHOWN])}


def run_rows(runs: QuerySet[WorkflowRun]) -> list[dict[str, Any]]:
    """Runs as lists show them."""
    return [
        {"run": run, "word": RUN_STATES[run.state], "by": TRIGGERS[run.trigger]}
        for run in runs.select_related("started_by")
    ]

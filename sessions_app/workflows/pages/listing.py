"""Find and list workflows and runs, with the labels of their states and the shipped examples."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from django.conf import settings
from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from sessions_app.accounts.authorization import may_write_somewhere
from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.pages.shortcuts import require_write_access
from sessions_app.sessions.rules.situation_facts import Label
from sessions_app.workflows.loader.loading import load_workflow
from sessions_app.workflows.models import NodeRun, Workflow, WorkflowRun
from sessions_app.workflows.services.runs import visible_runs, visible_workflows

RUN_STATE_LABELS: Final[Mapping[str, Label]] = {
    "queued": Label("Queued", "calm"),
    "running": Label("Running", "busy"),
    "succeeded": Label("Succeeded", "good"),
    "failed": Label("Failed", "bad"),
    "cancelled": Label("Cancelled", "off"),
}
NODE_STATE_LABELS: Final[Mapping[str, Label]] = {
    "running": Label("Running", "busy"),
    "succeeded": Label("Succeeded", "good"),
    "failed": Label("Failed", "bad"),
    "retried": Label("Sent back", "ask"),
    "skipped": Label("Skipped", "off"),
    "cancelled": Label("Cancelled", "off"),
}
_WAITING_LABELS: Final[Mapping[str, Label]] = {
    "user": Label("Waiting for you", "ask"),
    "agent": Label("Waiting for its agent", "calm"),
    "machine": Label("Waiting for its machine", "calm"),
}
TRIGGER_LABELS: Final[Mapping[str, str]] = {
    "manual": "by hand",
    "cron": "on schedule",
    "idle": "when the team was idle",
    "api": "through the API",
    "command": "on the command line",
}


def node_run_label(row: NodeRun) -> Label:
    """Return the label for the state of a node run."""
    if row.state == "running" and row.waiting_for in _WAITING_LABELS:
        return _WAITING_LABELS[row.waiting_for]
    return NODE_STATE_LABELS.get(row.state, Label(row.state, "off"))


def find_workflow(request: UserHttpRequest, workflow_id: uuid.UUID) -> Workflow:
    """Return a workflow of the user's teams. Raises Http404 for others, and PermissionDenied if a viewer changes it."""
    found: Workflow = get_object_or_404(visible_workflows(request.user), id=workflow_id)
    require_write_access(request, found.team_id)
    return found


def find_run(request: UserHttpRequest, run_id: uuid.UUID) -> WorkflowRun:
    """Return a run of the user's teams. Raises as ``find_workflow`` does."""
    rows = WorkflowRun.objects.visible_to(request.user).select_related("team", "workflow", "started_by")
    found: WorkflowRun = get_object_or_404(rows, id=run_id)
    require_write_access(request, found.team_id)
    return found


@dataclass(frozen=True, slots=True)
class WorkflowExample:
    """A shipped example. ``slug`` is its name in URLs and the stem of its file."""

    slug: str
    name: str
    about: str
    text: str


DEFAULT_EXAMPLE: Final = WorkflowExample(
    "",
    "",
    "",
    """\
version: 3
metadata:
  name: A new workflow
nodes:
  - id: trigger
    type: trigger
    data: { label: Start, triggerType: manual }
  - id: hello
    type: shell
    data:
      label: Say hello
      script: echo "Hello, {{ trigger.text }}"
edges:
  - { source: trigger, target: hello }
""",
)
EXAMPLES: Final = (
    (
        "review-until-approved",
        "A coder keeps its conversation and a reviewer starts over, until the review approves.",
    ),
    ("pattern-a", "One session through two loops: review, then tests."),
    ("pattern-b", "A gate sends work back if it fails its checks."),
    ("test-resumable-claude-code", "One session of Claude Code counts from 42 to 52 in a loop."),
    ("test-resumable-codex", "The same with Codex."),
    ("test-resumable-openai", "The same with an OpenAI model."),
)
_DIRECTORY: Final = Path(settings.BASE_DIR) / "docs" / "examples" / "workflows"


@cache
def find_example(slug: str) -> WorkflowExample:
    """Return the example with this slug, or the small default workflow."""
    about = dict(EXAMPLES).get(slug)
    path = _DIRECTORY / f"{slug}.yaml"
    if about is None or not path.is_file():
        return DEFAULT_EXAMPLE
    text = path.read_text(encoding="utf-8")
    loaded = load_workflow(text).workflow
    return WorkflowExample(slug, loaded.name if loaded else slug, about, text)


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

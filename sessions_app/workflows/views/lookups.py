"""Find the workflow or run that an address names."""

from __future__ import annotations

import uuid

from django.shortcuts import get_object_or_404

from executors_app.models import PROFILE_SECRETS
from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.pages.shortcuts import require_write_access
from sessions_app.workflows.models import Workflow, WorkflowRun
from sessions_app.workflows.services.workflows import visible_workflows


def find_workflow(request: UserHttpRequest, workflow_id: uuid.UUID) -> Workflow:
    """Return a workflow of the user's teams. Raises Http404 for others, and PermissionDenied if a viewer changes it."""
    found: Workflow = get_object_or_404(visible_workflows(request.user), id=workflow_id)
    require_write_access(request, found.team_id)
    return found


def find_run(request: UserHttpRequest, run_id: uuid.UUID) -> WorkflowRun:
    """Return a run of the user's teams. Raises as ``find_workflow`` does."""
    related = ("team", "workflow", "started_by", "executor", "agent_profile")
    rows = WorkflowRun.objects.visible_to(request.user).select_related(*related)
    rows = rows.defer(*(f"agent_profile__{name}" for name in PROFILE_SECRETS))
    found: WorkflowRun = get_object_or_404(rows, id=run_id)
    require_write_access(request, found.team_id)
    return found

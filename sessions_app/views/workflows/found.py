"""Which workflows and runs a request may have: another team's is a 404, a viewer's write a 403 (rule 39)."""

from __future__ import annotations

import uuid

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from django.shortcuts import get_object_or_404

from sessions_app.models import Workflow, WorkflowRun
from sessions_app.services.rights import may_write
from sessions_app.services.workflow_lists import visible_workflows
from sessions_app.views.found import READS


def find_workflow(request: HttpRequest, workflow_id: uuid.UUID) -> Workflow:
    """A workflow of the user's teams; Http404 for any other, PermissionDenied where a viewer wants to change it."""
    found: Workflow = get_object_or_404(visible_workflows(request.user), id=workflow_id)
    _refuse_viewers(request, found.team_id)
    return found


def find_run(request: HttpRequest, run_id: uuid.UUID) -> WorkflowRun:
    """A run of the user's teams; refuses as ``find_workflow`` does."""
    rows = WorkflowRun.objects.visible_to(request.user).select_related("team", "workflow", "started_by")
    found: WorkflowRun = get_object_or_404(rows, id=run_id)
    _refuse_viewers(request, found.team_id)
    return found


def _refuse_viewers(request: HttpRequest, team_id: int) -> None:
    if request.method not in READS and not may_write(request.user, team_id):
        raise PermissionDenied

"""Starting a workflow by hand, and putting it away."""

from __future__ import annotations

import uuid

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect
from django.template.loader import render_to_string
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from sessions_app.models import Workflow, WorkflowRun
from sessions_app.services import workflow_schedules, workflows
from sessions_app.services.errors import Invalid, SessionsError
from sessions_app.services.workflow_rows import graph_of
from sessions_app.services.workflow_starts import start_run_of
from sessions_app.services.workflow_texts import loading_for
from sessions_app.views.workflows.forms import RunForm
from sessions_app.views.workflows.found import find_workflow
from sessions_app.views.workflows.listing import list_context


@require_POST
def start(request: HttpRequest, workflow_id: uuid.UUID) -> HttpResponse:
    """Start a run and show it."""
    row = find_workflow(request, workflow_id)
    try:
        with loading_for(request.user, counted=False):
            run = _started(request, row)
    except SessionsError as error:
        messages.error(request, error.message)
        return redirect("workflow", row.id)
    if run.note:
        messages.warning(request, run.note)
    return redirect("workflow-run", run.id)


def _started(request: HttpRequest, row: Workflow) -> WorkflowRun:
    """The run that the form asks for, with the inputs that the workflow declares; what ``start_run_of`` raises."""
    graph = graph_of(row.text, row.files)
    form = RunForm(graph.inputs if graph else (), request.POST)
    if not form.is_valid():
        name, errors = next(iter(form.errors.items()))
        raise Invalid(f"{form[name].label}: {errors[0]}")
    seen = {"key": request.POST.get("key", ""), "revision": form.cleaned_data["revision"]}
    run, _ = start_run_of(request.user, row, form.inputs(), **seen)
    return run


@require_POST
def triggers(request: HttpRequest, workflow_id: uuid.UUID) -> HttpResponse:
    """Confirm what the triggers of a workflow start, as it was shown, or with ``do=off`` switch them off."""
    row = find_workflow(request, workflow_id)
    try:
        if request.POST.get("do") == "off":
            with loading_for(request.user, counted=False):
                workflows.save_workflow(request.user, {"triggers_enabled": False}, row)
            messages.success(request, "Its scheduled triggers are off.")
        else:
            with loading_for(request.user, counted=False):
                workflow_schedules.confirm(request.user, row, request.POST.get("fingerprint", ""))
            messages.success(request, "You confirmed it: scheduled runs have your rights from now on.")
    except SessionsError as error:
        messages.error(request, error.message)
    return redirect("workflow", row.id)


@require_POST
def archive(request: HttpRequest, workflow_id: uuid.UUID) -> HttpResponse:
    """Put a workflow away; its runs stay."""
    row = find_workflow(request, workflow_id)
    try:
        workflows.archive_workflow(request.user, row)
    except SessionsError as error:
        messages.error(request, error.message)
        return redirect("workflow", row.id)
    messages.success(request, f"“{row.name}” is put away: nothing starts it any more. Its runs stay.")
    return redirect("workflows")


@never_cache
@require_GET
def live(request: HttpRequest) -> JsonResponse:
    """The list as it is now."""
    context = list_context(request.user, away=bool(request.GET.get("archived")))
    return JsonResponse({"parts": {"workflows": render_to_string("workflows/list_rows.html", context)}})

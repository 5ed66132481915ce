"""Workflows and their runs (design 11)."""

from __future__ import annotations

import uuid
from functools import cached_property
from typing import Any

from django.shortcuts import get_object_or_404
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from sessions_app.api.base_views import ApiView
from sessions_app.api.serializers.common import document_responses
from sessions_app.workflows.api.serializers import (
    CheckAnswerSerializer,
    CheckQuerySerializer,
    ConfirmTriggersSerializer,
    NewWorkflowRunSerializer,
    NewWorkflowSerializer,
    ResumeRunSerializer,
    RunDocumentSerializer,
    RunQuerySerializer,
    TriggersDocumentSerializer,
    WorkflowChangeSerializer,
    WorkflowDetailSerializer,
    WorkflowQuerySerializer,
    WorkflowRunSerializer,
    WorkflowSerializer,
)
from sessions_app.workflows.models import Workflow, WorkflowRun
from sessions_app.workflows.services import runs, trigger_settings, workflows
from sessions_app.workflows.services.loading import check_document, check_text, user_load_slot
from sessions_app.workflows.services.runs import start_saved_run


class WorkflowListCreateView(ApiView):
    """The workflows of the user's teams."""

    @document_responses({200: WorkflowSerializer(many=True)}, 400, parameters=[WorkflowQuerySerializer])
    def get(self, request: Request) -> Response:
        """List the workflows by name."""
        away = self.query(WorkflowQuerySerializer)["archived"]
        found = runs.visible_workflows(request.user).filter(archived_at__isnull=not away)
        return self.list(WorkflowSerializer, found.defer("text", "files"))

    @document_responses({201: WorkflowDetailSerializer}, 400, 409, 429, 503, request=NewWorkflowSerializer)
    def post(self, request: Request) -> Response:
        """Keep a workflow. A text that cannot be run yet is kept, too; ``problems`` says what is wrong with it."""
        values = self.body(NewWorkflowSerializer)
        with user_load_slot(request.user):
            made, problems = workflows.save_workflow(request.user, values)
        return _workflow_response(self, made.id, problems, 201)


def _workflow_response(view: ApiView, workflow_id: uuid.UUID, problems: Any, status: int = 200) -> Response:
    row = runs.visible_workflows(view.request.user).get(id=workflow_id)
    context = {"request": view.request, "problems": problems}
    return Response(WorkflowDetailSerializer(row, context=context).data, status=status)


class WorkflowApiView(ApiView):
    """A view under ``workflows/{id}/``; another team's is a 404 whatever else is wrong."""

    @cached_property
    def workflow(self) -> Workflow:
        """The workflow of the address; Http404 if it is not one of the user's teams."""
        rows = runs.visible_workflows(self.request.user)
        found: Workflow = get_object_or_404(rows, id=self.kwargs["workflow_id"])
        return found

    def team_of_address(self) -> int:
        """The workflow's; it is found before anything is read from the request."""
        return self.workflow.team_id


class WorkflowDetailView(WorkflowApiView):
    """One workflow."""

    @document_responses({200: WorkflowDetailSerializer}, 404, 429, 503)
    def get(self, request: Request, workflow_id: uuid.UUID) -> Response:
        """Show a workflow with its text."""
        row = self.workflow
        with user_load_slot(request.user, counted=False):
            problems = check_text(row.text, row.files).problems
        return _workflow_response(self, row.id, problems)

    @document_responses({200: WorkflowDetailSerializer}, 400, 404, 409, 429, 503, request=WorkflowChangeSerializer)
    def patch(self, request: Request, workflow_id: uuid.UUID) -> Response:
        """Change a workflow; what is left out stays. Runs that have begun keep the text that they began with."""
        values = self.body(WorkflowChangeSerializer, workflow=self.workflow)
        revision = values.pop("revision", None)
        with user_load_slot(request.user):
            made, problems = workflows.save_workflow(request.user, values, workflow=self.workflow, revision=revision)
        return _workflow_response(self, made.id, problems)

    @document_responses({204: None}, 404)
    def delete(self, request: Request, workflow_id: uuid.UUID) -> Response:
        """Put a workflow away: nothing starts it any more. Its runs stay."""
        workflows.archive_workflow(request.user, self.workflow)
        return Response(status=204)


class WorkflowTriggersView(WorkflowApiView):
    """The triggers of a workflow."""

    @document_responses({200: TriggersDocumentSerializer}, 404, 429, 503)
    def get(self, request: Request, workflow_id: uuid.UUID) -> Response:
        """Show whether a workflow starts by itself, with whose rights, and what has changed since it was confirmed."""
        return _triggers_response(self, self.workflow)


class WorkflowTriggersConfirmView(WorkflowApiView):
    """Confirming what a workflow's triggers start."""

    @document_responses({200: TriggersDocumentSerializer}, 400, 404, 409, 429, 503, request=ConfirmTriggersSerializer)
    def post(self, request: Request, workflow_id: uuid.UUID) -> Response:
        """Confirm what the triggers start, and enable them: scheduled runs have your rights from then on.

        Who may do that may start the workflow by hand. ``fingerprint`` is that of the state you have read; a 409 says
        that it has changed since.
        """
        fingerprint = self.body(ConfirmTriggersSerializer)["fingerprint"]
        with user_load_slot(request.user, counted=False):
            row = trigger_settings.confirm_triggers(request.user, self.workflow, fingerprint)
        return _triggers_response(self, row)


def _triggers_response(view: ApiView, row: Workflow) -> Response:
    with user_load_slot(view.request.user, counted=False):
        document = trigger_settings.triggers_document(view.request.user, row)
    return Response(TriggersDocumentSerializer(document).data)


class WorkflowRunCreateView(WorkflowApiView):
    """Running a workflow."""

    http_method_names = ["post", "options"]

    @document_responses(
        {201: RunDocumentSerializer, 200: RunDocumentSerializer},
        400,
        404,
        409,
        429,
        503,
        request=NewWorkflowRunSerializer,
    )
    def post(self, request: Request, workflow_id: uuid.UUID) -> Response:
        """Start a run; the same ``idempotency_key`` again gets the same run once more, with 200."""
        asked = self.body(NewWorkflowRunSerializer)
        text = asked["text"] or asked["inputs"].get("text", "")
        inputs = {**asked["inputs"], "text": text, "params": asked["params"], "type": "api"}
        seen = {"key": asked["idempotency_key"], "revision": asked.get("revision")}
        with user_load_slot(request.user, counted=False):
            run, is_new = start_saved_run(request.user, self.workflow, inputs, trigger="api", **seen)
        return Response(workflows.run_document(run), status=201 if is_new else 200)


class WorkflowRunListView(ApiView):
    """The runs of the user's teams."""

    @document_responses({200: WorkflowRunSerializer(many=True)}, 400, parameters=[RunQuerySerializer])
    def get(self, request: Request) -> Response:
        """List the runs, newest first."""
        asked = self.query(RunQuerySerializer)
        named = {"workflow": "workflow_id", "task": "task_id", "state": "state"}
        chosen = {column: asked[name] for name, column in named.items() if name in asked}
        return self.list(WorkflowRunSerializer, runs.visible_runs(request.user).filter(**chosen))


class WorkflowRunApiView(ApiView):
    """A view under ``workflow-runs/{id}/``; another team's is a 404 whatever else is wrong."""

    @cached_property
    def run(self) -> WorkflowRun:
        """The run of the address; Http404 if it is not one of the user's teams."""
        rows = WorkflowRun.objects.visible_to(self.request.user)
        found: WorkflowRun = get_object_or_404(rows, id=self.kwargs["run_id"])
        return found

    def team_of_address(self) -> int:
        """The run's; it is found before anything is read from the request."""
        return self.run.team_id

    def told(self, status: int) -> Response:
        """The run as it is now."""
        rows = WorkflowRun.objects.visible_to(self.request.user)
        return Response(workflows.run_document(rows.get(id=self.run.id)), status=status)


class WorkflowRunDetailView(WorkflowRunApiView):
    """One run."""

    @document_responses({200: RunDocumentSerializer}, 404)
    def get(self, request: Request, run_id: uuid.UUID) -> Response:
        """Show a run with every time that a node ran."""
        return self.told(200)


class WorkflowRunCancelView(WorkflowRunApiView):
    """Ending a run."""

    @document_responses({202: RunDocumentSerializer}, 404, 409, request=None)
    def post(self, request: Request, run_id: uuid.UUID) -> Response:
        """Ask for the end of a run: its scripts and turns are ended, what has finished stays."""
        workflows.cancel_run(request.user, self.run)
        return self.told(202)


class WorkflowRunResumeView(WorkflowRunApiView):
    """Going on with a run that has failed."""

    @document_responses({202: RunDocumentSerializer}, 400, 404, 409, 429, 503, request=ResumeRunSerializer)
    def post(self, request: Request, run_id: uuid.UUID) -> Response:
        """Go on from what failed, or from ``node``; what is finished before it is kept, and so are sessions."""
        node = self.body(ResumeRunSerializer)["node"]
        with user_load_slot(request.user, counted=False):
            run = workflows.retry_run(request.user, self.run, node)
        return Response(workflows.run_document(run), status=202)


class WorkflowCheckView(ApiView):
    """Looking at a text. It writes nothing, so whoever is logged in may."""

    permission_classes = [IsAuthenticated]

    @document_responses({200: CheckAnswerSerializer}, 400, 429, 503, request=CheckQuerySerializer)
    def post(self, request: Request) -> Response:
        """Check a text: every problem with its line, node and what mends it, and the drawing as SVG."""
        asked = self.body(CheckQuerySerializer)
        with user_load_slot(request.user):
            return Response(check_document(check_text(asked["text"], asked["files"])))

"""API views of workflows, their triggers and their runs."""

from __future__ import annotations

import uuid
from dataclasses import asdict
from functools import cached_property
from typing import Any

from django.shortcuts import get_object_or_404
from rest_framework.permissions import IsAuthenticated
from rest_framework.response import Response

from sessions_app.accounts.requests import UserRequest
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
from sessions_app.workflows.services.loading import check_text, user_load_slot
from sessions_app.workflows.services.run_documents import run_document
from sessions_app.workflows.services.runs import start_saved_run
from sessions_app.workflows.services.trigger_errors import missing_worker_error


class WorkflowListCreateView(ApiView):
    """The workflows of the user's teams."""

    @document_responses({200: WorkflowSerializer(many=True)}, 400, parameters=[WorkflowQuerySerializer])
    def get(self, request: UserRequest) -> Response:
        """List the workflows by name."""
        is_archived = self.query(WorkflowQuerySerializer)["archived"]
        found = workflows.visible_workflows(request.user).filter(archived_at__isnull=not is_archived)
        rows = found.defer("text", "files")
        return self.list(WorkflowSerializer, rows, missing_worker=missing_worker_error())

    @document_responses({201: WorkflowDetailSerializer}, 400, 409, 429, 503, request=NewWorkflowSerializer)
    def post(self, request: UserRequest) -> Response:
        """Create a workflow. A text with errors is saved, too; ``problems`` lists them."""
        values = self.body(NewWorkflowSerializer)
        with user_load_slot(request.user):
            row, problems = workflows.save_workflow(request.user, values)
        return _workflow_response(self, row.id, problems, 201)


def _workflow_response(view: ApiView, workflow_id: uuid.UUID, problems: Any, status: int = 200) -> Response:
    row = workflows.visible_workflows(view.request.user).get(id=workflow_id)
    context = {"request": view.request, "problems": problems, "missing_worker": missing_worker_error()}
    return Response(WorkflowDetailSerializer(row, context=context).data, status=status)


class WorkflowApiView(ApiView):
    """Base of views under ``workflows/{id}/``. A workflow of another team is a 404, whatever else is wrong."""

    @cached_property
    def workflow(self) -> Workflow:
        """The workflow in the URL. Raises Http404 if it does not belong to a team of the user."""
        rows = workflows.visible_workflows(self.request.user)
        found: Workflow = get_object_or_404(rows, id=self.kwargs["workflow_id"])
        return found

    def team_of_address(self) -> int:
        """Return the team of the workflow, which is looked up before anything is read from the request."""
        return self.workflow.team_id


class WorkflowDetailView(WorkflowApiView):
    """One workflow."""

    @document_responses({200: WorkflowDetailSerializer}, 404, 429, 503)
    def get(self, request: UserRequest, workflow_id: uuid.UUID) -> Response:
        """Show a workflow with its text."""
        row = self.workflow
        with user_load_slot(request.user, counted=False):
            problems = check_text(row.text, row.files).problems
        return _workflow_response(self, row.id, problems)

    @document_responses({200: WorkflowDetailSerializer}, 400, 404, 409, 429, 503, request=WorkflowChangeSerializer)
    def patch(self, request: UserRequest, workflow_id: uuid.UUID) -> Response:
        """Change a workflow; omitted fields stay as they are. Runs that have begun keep their text."""
        values = self.body(WorkflowChangeSerializer, workflow=self.workflow)
        revision = values.pop("revision", None)
        with user_load_slot(request.user):
            row, problems = workflows.save_workflow(request.user, values, workflow=self.workflow, revision=revision)
        return _workflow_response(self, row.id, problems)

    @document_responses({204: None}, 404)
    def delete(self, request: UserRequest, workflow_id: uuid.UUID) -> Response:
        """Archive a workflow, so that it can no longer be started. Its runs are kept."""
        workflows.archive_workflow(request.user, self.workflow)
        return Response(status=204)


class WorkflowTriggersView(WorkflowApiView):
    """The triggers of a workflow."""

    @document_responses({200: TriggersDocumentSerializer}, 404, 429, 503)
    def get(self, request: UserRequest, workflow_id: uuid.UUID) -> Response:
        """Show whether a workflow starts on a schedule, with whose rights, and what changed since the confirmation."""
        return _triggers_response(self, self.workflow)


class WorkflowTriggersConfirmView(WorkflowApiView):
    """Confirmation of what the triggers of a workflow start."""

    @document_responses({200: TriggersDocumentSerializer}, 400, 404, 409, 429, 503, request=ConfirmTriggersSerializer)
    def post(self, request: UserRequest, workflow_id: uuid.UUID) -> Response:
        """Confirm what the triggers start, and enable them: scheduled runs have your rights from then on.

        You can do this if you can start the workflow by hand. ``fingerprint`` identifies the state that you have read;
        a 409 means that it has changed since.
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
    """Runs of a workflow."""

    @document_responses(
        {201: RunDocumentSerializer, 200: RunDocumentSerializer},
        *(400, 404, 409, 429, 503),
        request=NewWorkflowRunSerializer,
    )
    def post(self, request: UserRequest, workflow_id: uuid.UUID) -> Response:
        """Start a run. A repeated ``idempotency_key`` returns the same run, with 200."""
        values = self.body(NewWorkflowRunSerializer)
        text = values["text"] or values["inputs"].get("text", "")
        inputs = values["inputs"] | {"text": text, "params": values["params"], "type": "api"}
        with user_load_slot(request.user, counted=False):
            run, is_new = start_saved_run(
                request.user,
                self.workflow,
                inputs,
                trigger="api",
                key=values["idempotency_key"],
                revision=values.get("revision"),
            )
        status = 201 if is_new else 200
        return Response(run_document(run), status=status)


class WorkflowRunListView(ApiView):
    """The runs of the user's teams."""

    @document_responses({200: WorkflowRunSerializer(many=True)}, 400, parameters=[RunQuerySerializer])
    def get(self, request: UserRequest) -> Response:
        """List the runs, newest first."""
        query = self.query(RunQuerySerializer)
        columns = {"workflow": "workflow_id", "task": "task_id", "state": "state"}
        chosen = {column: query[name] for name, column in columns.items() if name in query}
        return self.list(WorkflowRunSerializer, runs.visible_runs(request.user).filter(**chosen))


class WorkflowRunApiView(ApiView):
    """Base of views under ``workflow-runs/{id}/``. A run of another team is a 404, whatever else is wrong."""

    @cached_property
    def run(self) -> WorkflowRun:
        """The run in the URL. Raises Http404 if it does not belong to a team of the user."""
        rows = WorkflowRun.objects.visible_to(self.request.user)
        found: WorkflowRun = get_object_or_404(rows, id=self.kwargs["run_id"])
        return found

    def team_of_address(self) -> int:
        """Return the team of the run, which is looked up before anything is read from the request."""
        return self.run.team_id

    def run_response(self, status: int) -> Response:
        """Return the response with the current state of the run."""
        rows = WorkflowRun.objects.visible_to(self.request.user)
        return Response(run_document(rows.get(id=self.run.id)), status=status)


class WorkflowRunDetailView(WorkflowRunApiView):
    """One run."""

    @document_responses({200: RunDocumentSerializer}, 404)
    def get(self, request: UserRequest, run_id: uuid.UUID) -> Response:
        """Show a run with all runs of its steps."""
        return self.run_response(200)


class WorkflowRunCancelView(WorkflowRunApiView):
    """Cancellation of a run."""

    @document_responses({202: RunDocumentSerializer}, 404, 409, request=None)
    def post(self, request: UserRequest, run_id: uuid.UUID) -> Response:
        """Cancel a run: its scripts and turns are stopped; finished steps stay."""
        runs.cancel_run(request.user, self.run)
        return self.run_response(202)


class WorkflowRunResumeView(WorkflowRunApiView):
    """Resumption of a failed or cancelled run."""

    @document_responses({202: RunDocumentSerializer}, 400, 404, 409, 429, 503, request=ResumeRunSerializer)
    def post(self, request: UserRequest, run_id: uuid.UUID) -> Response:
        """Resume a run at the steps that failed, or at ``node``. Finished steps before it and sessions are kept."""
        node = self.body(ResumeRunSerializer)["node"]
        with user_load_slot(request.user, counted=False):
            run = runs.retry_run(request.user, self.run, node)
        return Response(run_document(run), status=202)


class WorkflowCheckView(ApiView):
    """Check of a text. It writes nothing, so every user may do it."""

    permission_classes = [IsAuthenticated]

    @document_responses({200: CheckAnswerSerializer}, 400, 429, 503, request=CheckQuerySerializer)
    def post(self, request: UserRequest) -> Response:
        """Check a text: every problem with its line, step and fix, and the drawing as SVG."""
        values = self.body(CheckQuerySerializer)
        with user_load_slot(request.user):
            found = check_text(values["text"], values["files"])
        problems = [asdict(diagnostic) for diagnostic in found.problems]
        return Response({"valid": found.is_valid, "problems": problems, "svg": found.svg})

"""Workflows and their runs (design 11)."""

from __future__ import annotations

import uuid
from functools import cached_property
from typing import Any

from django.shortcuts import get_object_or_404
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from sessions_app.api.base import ApiView
from sessions_app.api.serializers.common import described
from sessions_app.api.serializers.workflows import (
    CheckAnswer,
    CheckQuery,
    ConfirmTriggers,
    NewWorkflow,
    NewWorkflowRun,
    ResumeRun,
    RunDocument,
    RunQuery,
    TriggersDocument,
    WorkflowChange,
    WorkflowDetail,
    WorkflowQuery,
    WorkflowRunSerializer,
    WorkflowSerializer,
)
from sessions_app.models import Workflow, WorkflowRun
from sessions_app.services import workflow_lists, workflow_schedules, workflows
from sessions_app.services.workflow_starts import start_run_of
from sessions_app.services.workflow_texts import check_document, check_text, loading_for


class Workflows(ApiView):
    """The workflows of the user's teams."""

    @described({200: WorkflowSerializer(many=True)}, 400, parameters=[WorkflowQuery])
    def get(self, request: Request) -> Response:
        """List the workflows by name."""
        away = self.query(WorkflowQuery)["archived"]
        found = workflow_lists.visible_workflows(request.user).filter(archived_at__isnull=not away)
        return self.list(WorkflowSerializer, found.defer("text", "files"))

    @described({201: WorkflowDetail}, 400, 409, 429, 503, request=NewWorkflow)
    def post(self, request: Request) -> Response:
        """Keep a workflow. A text that cannot be run yet is kept, too; ``problems`` says what is wrong with it."""
        values = self.body(NewWorkflow)
        with loading_for(request.user):
            made, problems = workflows.save_workflow(request.user, values)
        return _shown(self, made.id, problems, 201)


def _shown(view: ApiView, workflow_id: uuid.UUID, problems: Any, status: int = 200) -> Response:
    row = workflow_lists.visible_workflows(view.request.user).get(id=workflow_id)
    context = {"request": view.request, "problems": problems}
    return Response(WorkflowDetail(row, context=context).data, status=status)


class _WorkflowView(ApiView):
    """A view under ``workflows/{id}/``; another team's is a 404 whatever else is wrong."""

    @cached_property
    def workflow(self) -> Workflow:
        """The workflow of the address; Http404 if it is not one of the user's teams."""
        rows = workflow_lists.visible_workflows(self.request.user)
        found: Workflow = get_object_or_404(rows, id=self.kwargs["workflow_id"])
        return found

    def team_of_address(self) -> int:
        """The workflow's; it is found before anything is read from the request."""
        return self.workflow.team_id


class WorkflowView(_WorkflowView):
    """One workflow."""

    @described({200: WorkflowDetail}, 404, 429, 503)
    def get(self, request: Request, workflow_id: uuid.UUID) -> Response:
        """Show a workflow with its text."""
        row = self.workflow
        with loading_for(request.user, counted=False):
            problems = check_text(row.text, row.files).problems
        return _shown(self, row.id, problems)

    @described({200: WorkflowDetail}, 400, 404, 409, 429, 503, request=WorkflowChange)
    def patch(self, request: Request, workflow_id: uuid.UUID) -> Response:
        """Change a workflow; what is left out stays. Runs that have begun keep the text that they began with."""
        values = self.body(WorkflowChange, workflow=self.workflow)
        revision = values.pop("revision", None)
        with loading_for(request.user):
            made, problems = workflows.save_workflow(request.user, values, workflow=self.workflow, revision=revision)
        return _shown(self, made.id, problems)

    @described({204: None}, 404)
    def delete(self, request: Request, workflow_id: uuid.UUID) -> Response:
        """Put a workflow away: nothing starts it any more. Its runs stay."""
        workflows.archive_workflow(request.user, self.workflow)
        return Response(status=204)


class Triggers(_WorkflowView):
    """The triggers of a workflow."""

    @described({200: TriggersDocument}, 404, 429, 503)
    def get(self, request: Request, workflow_id: uuid.UUID) -> Response:
        """Show whether a workflow starts by itself, with whose rights, and what has changed since it was confirmed."""
        return _shown_triggers(self, self.workflow)


class ConfirmationOfTriggers(_WorkflowView):
    """Confirming what a workflow's triggers start."""

    @described({200: TriggersDocument}, 400, 404, 409, 429, 503, request=ConfirmTriggers)
    def post(self, request: Request, workflow_id: uuid.UUID) -> Response:
        """Confirm what the triggers start, and enable them: scheduled runs have your rights from then on.

        Who may do that may start the workflow by hand. ``fingerprint`` is that of the state you have read; a 409 says
        that it has changed since.
        """
        fingerprint = self.body(ConfirmTriggers)["fingerprint"]
        with loading_for(request.user, counted=False):
            row = workflow_schedules.confirm(request.user, self.workflow, fingerprint)
        return _shown_triggers(self, row)


def _shown_triggers(view: ApiView, row: Workflow) -> Response:
    with loading_for(view.request.user, counted=False):
        document = workflow_schedules.triggers_document(view.request.user, row)
    return Response(TriggersDocument(document).data)


class RunsOfWorkflow(_WorkflowView):
    """Running a workflow."""

    http_method_names = ["post", "options"]

    @described({201: RunDocument, 200: RunDocument}, 400, 404, 409, 429, 503, request=NewWorkflowRun)
    def post(self, request: Request, workflow_id: uuid.UUID) -> Response:
        """Start a run; the same ``idempotency_key`` again gets the same run once more, with 200."""
        asked = self.body(NewWorkflowRun)
        text = asked["text"] or asked["inputs"].get("text", "")
        inputs = {**asked["inputs"], "text": text, "params": asked["params"], "type": "api"}
        seen = {"key": asked["idempotency_key"], "revision": asked.get("revision")}
        with loading_for(request.user, counted=False):
            run, is_new = start_run_of(request.user, self.workflow, inputs, trigger="api", **seen)
        return Response(workflows.run_document(run), status=201 if is_new else 200)


class WorkflowRuns(ApiView):
    """The runs of the user's teams."""

    @described({200: WorkflowRunSerializer(many=True)}, 400, parameters=[RunQuery])
    def get(self, request: Request) -> Response:
        """List the runs, newest first."""
        asked = self.query(RunQuery)
        named = {"workflow": "workflow_id", "task": "task_id", "state": "state"}
        chosen = {column: asked[name] for name, column in named.items() if name in asked}
        return self.list(WorkflowRunSerializer, workflow_lists.visible_runs(request.user).filter(**chosen))


class _RunView(ApiView):
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


class RunDetail(_RunView):
    """One run."""

    @described({200: RunDocument}, 404)
    def get(self, request: Request, run_id: uuid.UUID) -> Response:
        """Show a run with every time that a node ran."""
        return self.told(200)


class CancelRun(_RunView):
    """Ending a run."""

    @described({202: RunDocument}, 404, 409, request=None)
    def post(self, request: Request, run_id: uuid.UUID) -> Response:
        """Ask for the end of a run: its scripts and turns are ended, what has finished stays."""
        workflows.cancel_run(request.user, self.run)
        return self.told(202)


class Resume(_RunView):
    """Going on with a run that has failed."""

    @described({202: RunDocument}, 400, 404, 409, 429, 503, request=ResumeRun)
    def post(self, request: Request, run_id: uuid.UUID) -> Response:
        """Go on from what failed, or from ``node``; what is finished before it is kept, and so are sessions."""
        node = self.body(ResumeRun)["node"]
        with loading_for(request.user, counted=False):
            run = workflows.retry_run(request.user, self.run, node)
        return Response(workflows.run_document(run), status=202)


class Check(ApiView):
    """Looking at a text. It writes nothing, so whoever is logged in may."""

    permission_classes = [IsAuthenticated]

    @described({200: CheckAnswer}, 400, 429, 503, request=CheckQuery)
    def post(self, request: Request) -> Response:
        """Check a text: every problem with its line, node and what mends it, and the drawing as SVG."""
        asked = self.body(CheckQuery)
        with loading_for(request.user):
            return Response(check_document(check_text(asked["text"], asked["files"])))

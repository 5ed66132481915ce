"""API views of tasks."""

from __future__ import annotations

import uuid
from typing import Any

from rest_framework.permissions import SAFE_METHODS, IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from sessions_app.accounts.requests import UserRequest
from sessions_app.api.base_views import ApiView, TaskApiView
from sessions_app.api.serializers.common import document_responses
from sessions_app.board.api.serializers import (
    ConfirmedQuerySerializer,
    FinishedTaskSerializer,
    FinishTaskSerializer,
    NewTaskSerializer,
    TaskBulkAnswerSerializer,
    TaskBulkRequestSerializer,
    TaskChangeSerializer,
    TaskQuerySerializer,
    TaskSerializer,
)
from sessions_app.board.services import deletion, tasks
from sessions_app.board.services.bulk import change_tasks
from sessions_app.board.services.tasks import visible_tasks
from sessions_app.finish.api.serializers import UnfinishedTaskSerializer
from sessions_app.finish.unfinished import unfinished_work
from sessions_app.kernel.services.errors import WorkUnfinished
from sessions_app.planning.services import with_plans


class MemberPermission(IsAuthenticated):
    """Everyone who can see an item can mark it as seen, except with a read-only token."""

    def has_permission(self, request: Request, view: Any) -> bool:
        """Return whether the request is allowed. Raises Http404 if the user cannot see the object."""
        if not super().has_permission(request, view):
            return False
        view.team_of_address()
        return request.method in SAFE_METHODS or not getattr(request.user, "only_reads", False)


class TaskListCreateView(ApiView):
    """The tasks of the user's teams."""

    @document_responses({200: TaskSerializer(many=True)}, 400, parameters=[TaskQuerySerializer])
    def get(self, request: UserRequest) -> Response:
        """List the tasks, newest first."""
        # Prefetched: with joins, the database would sort all tasks instead of reading the newest ones from an index.
        found = visible_tasks(request.user).select_related(None).prefetch_related("team", "repository")
        query = self.query(TaskQuerySerializer)
        if "archived" in query:
            found = found.filter(archived_at__isnull=not query["archived"])
        return self.list(TaskSerializer, with_plans(found))

    @document_responses({201: TaskSerializer, 200: TaskSerializer}, 400, 409, request=NewTaskSerializer)
    def post(self, request: UserRequest) -> Response:
        """Create a task.

        Repeating the request with the same ``idempotency_key`` in the same team returns the same task, with 200.
        """
        values = self.body(NewTaskSerializer)
        key = values.pop("idempotency_key")
        mark = tasks.mark_task(values, key)
        created, is_new = tasks.create_task_once(request.user, values, mark)
        task = visible_tasks(request.user).get(id=created.id)
        if is_new:
            return self.show(TaskSerializer, task, 201)
        return self.show(TaskSerializer, task, 200)


class _TaskChangeView(TaskApiView):
    """Base class of views that change a task."""

    def updated_response(self) -> Response:
        """Return the task as it is after a change."""
        return self.show(TaskSerializer, visible_tasks(self.request.user).get(id=self.task.id))


class TaskDetailView(_TaskChangeView):
    """One task."""

    @document_responses({200: TaskSerializer}, 404)
    def get(self, request: UserRequest, task_id: uuid.UUID) -> Response:
        """Return a task."""
        return self.show(TaskSerializer, self.task)

    @document_responses({200: TaskSerializer}, 400, 404, 409, request=TaskChangeSerializer)
    def patch(self, request: UserRequest, task_id: uuid.UUID) -> Response:
        """Update a task.

        With `version`, title and description are saved only over the version that their editor has seen, else 409
        `task_changed`.
        """
        values = self.body(TaskChangeSerializer, task=self.task)
        version = values.pop("version", None)
        tasks.change_task(self.task, values, version)
        return self.updated_response()

    @document_responses({204: None}, 400, 404, 409, parameters=[ConfirmedQuerySerializer])
    def delete(self, request: UserRequest, task_id: uuid.UUID) -> Response:
        """Delete a task with its sessions, none of which may have a live execution.

        If something is not committed or not merged, the request names the `version` of `GET unfinished/` as
        `confirmed`, else 409 `unfinished_work`.
        """
        deletion.delete_task(self.task, request.user, self.query(ConfirmedQuerySerializer)["confirmed"])
        return Response(status=204)


class TaskUnfinishedView(TaskApiView):
    """The unfinished work of a task."""

    @document_responses({200: UnfinishedTaskSerializer}, 404)
    def get(self, request: UserRequest, task_id: uuid.UUID) -> Response:
        """Say what the sessions of a task have that is not committed or not merged. Changes nothing."""
        return self.show(UnfinishedTaskSerializer, unfinished_work(self.task))


class TaskArchiveView(_TaskChangeView):
    """Archiving a task."""

    @document_responses({200: TaskSerializer}, 404, request=None)
    def post(self, request: UserRequest, task_id: uuid.UUID) -> Response:
        """Archive a task and stop its sessions."""
        tasks.archive_task(self.task, request.user)
        return self.updated_response()


class TaskDoneView(_TaskChangeView):
    """Finishing a task."""

    @document_responses({200: FinishedTaskSerializer}, 400, 404, 409, request=FinishTaskSerializer)
    def post(self, request: UserRequest, task_id: uuid.UUID) -> Response:
        """Mark a task as done and stop its sessions. `unfinished` says what is not committed or not merged.

        With `only_if_finished`, such a task is not marked: 409 `unfinished_work`.
        """
        only_if_finished = self.body(FinishTaskSerializer)["only_if_finished"]
        left = unfinished_work(self.task)
        if only_if_finished and left.is_something:
            raise WorkUnfinished(**UnfinishedTaskSerializer(left).data)
        tasks.finish_task(self.task, request.user)
        task = visible_tasks(request.user).get(id=self.task.id)
        context = {"request": request, "unfinished": left}
        return Response(FinishedTaskSerializer(task, context=context).data)


class TaskBulkView(ApiView):
    """An action on several tasks."""

    @document_responses({200: TaskBulkAnswerSerializer}, 400, request=TaskBulkRequestSerializer)
    def post(self, request: UserRequest) -> Response:
        """Mark tasks as done, or archive them, each by itself; their sessions are stopped.

        Unless the request is `confirmed`, a task with work that is not committed or not merged, or of which that is not
        known, stays as it is: `unfinished_work`.
        """
        values = self.body(TaskBulkRequestSerializer)
        outcomes = change_tasks(request.user, values["action"], values["tasks"], confirmed=values["confirmed"])
        return self.show(TaskBulkAnswerSerializer, {"results": outcomes})


class TaskUnarchiveView(_TaskChangeView):
    """Restoring an archived task."""

    @document_responses({200: TaskSerializer}, 404, request=None)
    def post(self, request: UserRequest, task_id: uuid.UUID) -> Response:
        """Restore an archived task; its sessions stay stopped."""
        tasks.unarchive_task(self.task, request.user)
        return self.updated_response()


class TaskCancelView(_TaskChangeView):
    """Cancelling a task."""

    @document_responses({200: TaskSerializer}, 404, 409, request=None)
    def post(self, request: UserRequest, task_id: uuid.UUID) -> Response:
        """Cancel a task and stop its sessions. A task that is done cannot be cancelled."""
        tasks.cancel_task(self.task, request.user)
        return self.updated_response()


class TaskReopenView(_TaskChangeView):
    """Reopening a task."""

    @document_responses({200: TaskSerializer}, 404, request=None)
    def post(self, request: UserRequest, task_id: uuid.UUID) -> Response:
        """Reopen a task that is done or cancelled; its state follows from its sessions again."""
        tasks.reopen_task(self.task, request.user)
        return self.updated_response()

"""Tasks and repositories."""

from __future__ import annotations

import uuid

from rest_framework.request import Request
from rest_framework.response import Response

from sessions_app.api.base import ApiView, StaffWrites, TaskView
from sessions_app.api.serializers.common import described
from sessions_app.api.serializers.tasks import (
    NewRepository,
    NewTask,
    RepositorySerializer,
    TaskChange,
    TaskQuery,
    TaskSerializer,
)
from sessions_app.models import Repository
from sessions_app.services import catalogue, tasks


class Tasks(ApiView):
    """The tasks of the user's teams."""

    @described({200: TaskSerializer(many=True)}, 400, parameters=[TaskQuery])
    def get(self, request: Request) -> Response:
        """List the tasks, newest first."""
        found, query = catalogue.visible_tasks(request.user), self.query(TaskQuery)
        if "archived" in query:
            found = found.filter(archived_at__isnull=not query["archived"])
        return self.list(TaskSerializer, found)

    @described({201: TaskSerializer, 200: TaskSerializer}, 400, 409, request=NewTask)
    def post(self, request: Request) -> Response:
        """Make a task; the same ``idempotency_key`` again in the same team gets it once more, with 200."""
        asked = self.body(NewTask)
        made, new = tasks.create_task_once(request.user, asked, asked.pop("idempotency_key"))
        return self.show(TaskSerializer, catalogue.visible_tasks(request.user).get(id=made.id), 201 if new else 200)


class TaskDetail(TaskView):
    """One task."""

    @described({200: TaskSerializer}, 404)
    def get(self, request: Request, task_id: uuid.UUID) -> Response:
        """Show a task."""
        return self.show(TaskSerializer, self.task)

    @described({200: TaskSerializer}, 400, 404, 409, request=TaskChange)
    def patch(self, request: Request, task_id: uuid.UUID) -> Response:
        """Change a task."""
        tasks.change_task(self.task, self.body(TaskChange, task=self.task))
        return self.show_anew()

    def show_anew(self) -> Response:
        """Show the task as it is after a change."""
        return self.show(TaskSerializer, catalogue.visible_tasks(self.request.user).get(id=self.task.id))


class Archive(TaskDetail):
    """Putting a task away."""

    http_method_names = ["post", "options"]

    @described({200: TaskSerializer}, 404, request=None)
    def post(self, request: Request, task_id: uuid.UUID) -> Response:
        """Put a task away; its sessions are stopped."""
        tasks.archive(self.task, request.user)
        return self.show_anew()


class Done(TaskDetail):
    """Finishing a task."""

    http_method_names = ["post", "options"]

    @described({200: TaskSerializer}, 404, 409, request=None)
    def post(self, request: Request, task_id: uuid.UUID) -> Response:
        """Say that a task is done; its sessions are stopped."""
        tasks.finish(self.task, request.user)
        return self.show_anew()


class Unarchive(TaskDetail):
    """Restoring an archived task."""

    http_method_names = ["post", "options"]

    @described({200: TaskSerializer}, 404, request=None)
    def post(self, request: Request, task_id: uuid.UUID) -> Response:
        """Put an archived task back on the board; its sessions stay stopped."""
        tasks.unarchive(self.task, request.user)
        return self.show_anew()


class Cancel(TaskDetail):
    """Cancelling a task."""

    http_method_names = ["post", "options"]

    @described({200: TaskSerializer}, 404, 409, request=None)
    def post(self, request: Request, task_id: uuid.UUID) -> Response:
        """Cancel a task; its sessions are stopped. 409 for a task that is done."""
        tasks.cancel(self.task, request.user)
        return self.show_anew()


class Reopen(TaskDetail):
    """Continuing a task that is done or cancelled."""

    http_method_names = ["post", "options"]

    @described({200: TaskSerializer}, 404, request=None)
    def post(self, request: Request, task_id: uuid.UUID) -> Response:
        """Continue a task that is done or cancelled; its state follows from its sessions again."""
        tasks.reopen(self.task, request.user)
        return self.show_anew()


class Repositories(ApiView):
    """The repositories that staff opened to the user's teams."""

    permission_classes = [StaffWrites]

    @described({200: RepositorySerializer(many=True)})
    def get(self, request: Request) -> Response:
        """List the repositories."""
        return self.list(RepositorySerializer, Repository.objects.visible_to(request.user))

    @described({201: RepositorySerializer}, 400, 403, request=NewRepository)
    def post(self, request: Request) -> Response:
        """Open a git repository of this machine to a team; for staff only."""
        made = catalogue.add_repository(self.body(NewRepository, any_team=True))
        return self.show(RepositorySerializer, made, 201)

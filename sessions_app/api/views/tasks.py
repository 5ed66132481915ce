"""API views of tasks, repositories and the inbox."""

from __future__ import annotations

import uuid
from typing import Any

from django.db.models import QuerySet
from django.shortcuts import get_object_or_404
from rest_framework.permissions import SAFE_METHODS, IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from sessions_app.api.base_views import ApiView, SessionApiView, StaffWritePermission, TaskApiView
from sessions_app.api.serializers.common import document_responses
from sessions_app.api.serializers.sessions import StatusSerializer
from sessions_app.api.serializers.tasks import (
    AttentionQuerySerializer,
    AttentionSerializer,
    NewRepositorySerializer,
    NewTaskSerializer,
    RepositorySerializer,
    TaskChangeSerializer,
    TaskQuerySerializer,
    TaskSerializer,
)
from sessions_app.models import AttentionItem, Repository
from sessions_app.services import attention, catalogue, tasks
from sessions_app.services.status import session_status


class TaskListCreateView(ApiView):
    """The tasks of the user's teams."""

    @document_responses({200: TaskSerializer(many=True)}, 400, parameters=[TaskQuerySerializer])
    def get(self, request: Request) -> Response:
        """List the tasks, newest first."""
        found, query = catalogue.visible_tasks(request.user), self.query(TaskQuerySerializer)
        if "archived" in query:
            found = found.filter(archived_at__isnull=not query["archived"])
        return self.list(TaskSerializer, found)

    @document_responses({201: TaskSerializer, 200: TaskSerializer}, 400, 409, request=NewTaskSerializer)
    def post(self, request: Request) -> Response:
        """Make a task; the same ``idempotency_key`` again in the same team gets it once more, with 200."""
        asked = self.body(NewTaskSerializer)
        made, new = tasks.create_task_once(request.user, asked, asked.pop("idempotency_key"))
        return self.show(TaskSerializer, catalogue.visible_tasks(request.user).get(id=made.id), 201 if new else 200)


class TaskDetailView(TaskApiView):
    """One task."""

    @document_responses({200: TaskSerializer}, 404)
    def get(self, request: Request, task_id: uuid.UUID) -> Response:
        """Show a task."""
        return self.show(TaskSerializer, self.task)

    @document_responses({200: TaskSerializer}, 400, 404, 409, request=TaskChangeSerializer)
    def patch(self, request: Request, task_id: uuid.UUID) -> Response:
        """Change a task."""
        tasks.change_task(self.task, self.body(TaskChangeSerializer, task=self.task))
        return self.updated_response()

    def updated_response(self) -> Response:
        """Show the task as it is after a change."""
        return self.show(TaskSerializer, catalogue.visible_tasks(self.request.user).get(id=self.task.id))


class TaskArchiveView(TaskDetailView):
    """Putting a task away."""

    http_method_names = ["post", "options"]

    @document_responses({200: TaskSerializer}, 404, request=None)
    def post(self, request: Request, task_id: uuid.UUID) -> Response:
        """Put a task away; its sessions are stopped."""
        tasks.archive_task(self.task, request.user)
        return self.updated_response()


class TaskDoneView(TaskDetailView):
    """Finishing a task."""

    http_method_names = ["post", "options"]

    @document_responses({200: TaskSerializer}, 404, 409, request=None)
    def post(self, request: Request, task_id: uuid.UUID) -> Response:
        """Say that a task is done; its sessions are stopped."""
        tasks.finish_task(self.task, request.user)
        return self.updated_response()


class TaskUnarchiveView(TaskDetailView):
    """Restoring an archived task."""

    http_method_names = ["post", "options"]

    @document_responses({200: TaskSerializer}, 404, request=None)
    def post(self, request: Request, task_id: uuid.UUID) -> Response:
        """Put an archived task back on the board; its sessions stay stopped."""
        tasks.unarchive_task(self.task, request.user)
        return self.updated_response()


class TaskCancelView(TaskDetailView):
    """Cancelling a task."""

    http_method_names = ["post", "options"]

    @document_responses({200: TaskSerializer}, 404, 409, request=None)
    def post(self, request: Request, task_id: uuid.UUID) -> Response:
        """Cancel a task; its sessions are stopped. 409 for a task that is done."""
        tasks.cancel_task(self.task, request.user)
        return self.updated_response()


class TaskReopenView(TaskDetailView):
    """Continuing a task that is done or cancelled."""

    http_method_names = ["post", "options"]

    @document_responses({200: TaskSerializer}, 404, request=None)
    def post(self, request: Request, task_id: uuid.UUID) -> Response:
        """Continue a task that is done or cancelled; its state follows from its sessions again."""
        tasks.reopen_task(self.task, request.user)
        return self.updated_response()


class RepositoryListCreateView(ApiView):
    """The repositories that staff opened to the user's teams."""

    permission_classes = [StaffWritePermission]

    @document_responses({200: RepositorySerializer(many=True)})
    def get(self, request: Request) -> Response:
        """List the repositories."""
        return self.list(RepositorySerializer, Repository.objects.visible_to(request.user))

    @document_responses({201: RepositorySerializer}, 400, 403, request=NewRepositorySerializer)
    def post(self, request: Request) -> Response:
        """Open a git repository of this machine to a team; for staff only."""
        made = catalogue.add_repository(self.body(NewRepositorySerializer, any_team=True))
        return self.show(RepositorySerializer, made, 201)


class MemberPermission(IsAuthenticated):
    """Whoever sees something may say that they have; a key that only reads may not."""

    def has_permission(self, request: Request, view: Any) -> bool:
        """Whether this request may go on; Http404 where the address names what is not the user's to see."""
        if not super().has_permission(request, view):
            return False
        view.team_of_address()
        return request.method in SAFE_METHODS or not getattr(request.user, "only_reads", False)


class AttentionListView(ApiView):
    """The inbox."""

    permission_classes = [MemberPermission]

    @document_responses({200: AttentionSerializer(many=True)}, 400, parameters=[AttentionQuerySerializer])
    def get(self, request: Request) -> Response:
        """List what needs the user, the most pressing first; with ``state=all`` what is over, too, newest first."""
        asked = self.query(AttentionQuerySerializer)
        return self.list(AttentionSerializer, _attention_items(request.user, asked))


def _attention_items(user: Any, asked: dict[str, Any]) -> QuerySet[AttentionItem]:
    rows = {
        "open": attention.open_items_for,
        "news": attention.unseen_items_for,
        "all": attention.visible_items,
    }[asked["state"]](user)
    named = {"kind": "kind", "task": "task_id", "session": "session_id"}
    rows = rows.filter(**{column: asked[name] for name, column in named.items() if name in asked})
    return rows.filter(attention.own_items(user)) if asked["mine"] else rows


class _AttentionItemView(ApiView):
    """A view of one item of the user's."""

    permission_classes = [MemberPermission]

    def item(self, item_id: uuid.UUID) -> AttentionItem:
        """It; Http404 for another team's."""
        found: AttentionItem = get_object_or_404(attention.visible_items(self.request.user), id=item_id)
        return found


class AttentionItemAcknowledgeView(_AttentionItemView):
    """Having seen one."""

    @document_responses({200: AttentionSerializer}, 404, request=None)
    def post(self, request: Request, item_id: uuid.UUID) -> Response:
        """Say that the user has seen it; it stays until it is settled."""
        attention.acknowledge_item(self.item(item_id), request.user)
        return self.show(AttentionSerializer, self.item(item_id))


class AttentionItemDismissView(_AttentionItemView):
    """Wanting to hear no more of one."""

    @document_responses({200: AttentionSerializer}, 404, request=None)
    def post(self, request: Request, item_id: uuid.UUID) -> Response:
        """Take it out of the user's inbox; others are still shown it."""
        attention.dismiss_item(self.item(item_id), request.user)
        return self.show(AttentionSerializer, self.item(item_id))


class SessionAcknowledgeView(SessionApiView):
    """Having seen a session."""

    permission_classes = [MemberPermission]

    @document_responses({200: StatusSerializer}, 404, request=None)
    def post(self, request: Request, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Say that the user has seen all that is open of a session."""
        attention.acknowledge_session(self.session, request.user)
        return Response(session_status(self.session, request.user))

"""API views of tasks, repositories and the inbox."""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.shortcuts import get_object_or_404
from rest_framework.permissions import SAFE_METHODS, IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from sessions_app.accounts.requests import UserRequest
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
        found = catalogue.visible_tasks(request.user).select_related(None).prefetch_related("team", "repository")
        query = self.query(TaskQuerySerializer)
        if "archived" in query:
            found = found.filter(archived_at__isnull=not query["archived"])
        return self.list(TaskSerializer, found)

    @document_responses({201: TaskSerializer, 200: TaskSerializer}, 400, 409, request=NewTaskSerializer)
    def post(self, request: UserRequest) -> Response:
        """Create a task.

        Repeating the request with the same ``idempotency_key`` in the same team returns the same task, with 200.
        """
        asked = self.body(NewTaskSerializer)
        key = asked.pop("idempotency_key")
        mark = tasks.mark_task(asked, key)
        made, new = tasks.create_task_once(request.user, asked, mark)
        return self.show(TaskSerializer, catalogue.visible_tasks(request.user).get(id=made.id), 201 if new else 200)


class _TaskChangeView(TaskApiView):
    """Base class of views that change a task."""

    def updated_response(self) -> Response:
        """Return the task as it is after a change."""
        return self.show(TaskSerializer, catalogue.visible_tasks(self.request.user).get(id=self.task.id))


class TaskDetailView(_TaskChangeView):
    """One task."""

    @document_responses({200: TaskSerializer}, 404)
    def get(self, request: UserRequest, task_id: uuid.UUID) -> Response:
        """Return a task."""
        return self.show(TaskSerializer, self.task)

    @document_responses({200: TaskSerializer}, 400, 404, 409, request=TaskChangeSerializer)
    def patch(self, request: UserRequest, task_id: uuid.UUID) -> Response:
        """Update a task."""
        tasks.change_task(self.task, self.body(TaskChangeSerializer, task=self.task))
        return self.updated_response()


class TaskArchiveView(_TaskChangeView):
    """Archiving a task."""

    @document_responses({200: TaskSerializer}, 404, request=None)
    def post(self, request: UserRequest, task_id: uuid.UUID) -> Response:
        """Archive a task and stop its sessions."""
        tasks.archive_task(self.task, request.user)
        return self.updated_response()


class TaskDoneView(_TaskChangeView):
    """Finishing a task."""

    @document_responses({200: TaskSerializer}, 404, 409, request=None)
    def post(self, request: UserRequest, task_id: uuid.UUID) -> Response:
        """Mark a task as done and stop its sessions."""
        tasks.finish_task(self.task, request.user)
        return self.updated_response()


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


class RepositoryListCreateView(ApiView):
    """The repositories that are open to the user's teams."""

    permission_classes = [StaffWritePermission]

    @document_responses({200: RepositorySerializer(many=True)})
    def get(self, request: UserRequest) -> Response:
        """List the repositories."""
        return self.list(RepositorySerializer, Repository.objects.visible_to(request.user))

    @document_responses({201: RepositorySerializer}, 400, 403, request=NewRepositorySerializer)
    def post(self, request: UserRequest) -> Response:
        """Open a git repository on this machine to a team. Staff only."""
        made = catalogue.add_repository(self.body(NewRepositorySerializer, any_team=True))
        return self.show(RepositorySerializer, made, 201)


class AttentionListView(ApiView):
    """The inbox."""

    permission_classes = [MemberPermission]

    @document_responses({200: AttentionSerializer(many=True)}, 400, parameters=[AttentionQuerySerializer])
    def get(self, request: UserRequest) -> Response:
        """List inbox items, the most urgent first; with ``state=all``, resolved items too, newest first."""
        asked = self.query(AttentionQuerySerializer)
        return self.list(AttentionSerializer, _attention_items(request.user, asked))


def _attention_items(user: User, asked: dict[str, Any]) -> QuerySet[AttentionItem]:
    rows = {
        "open": attention.open_items_for,
        "news": attention.unseen_items_for,
        "all": attention.visible_items,
    }[asked["state"]](user)
    named = {"kind": "kind", "task": "task_id", "session": "session_id"}
    rows = rows.filter(**{column: asked[name] for name, column in named.items() if name in asked})
    return rows.filter(attention.own_items(user)) if asked["mine"] else rows


class _AttentionItemView(ApiView):
    """Base class of views of one inbox item."""

    permission_classes = [MemberPermission]

    def item(self, item_id: uuid.UUID) -> AttentionItem:
        """Return the item. Raises Http404 if it belongs to another team."""
        found: AttentionItem = get_object_or_404(attention.visible_items(self.request.user), id=item_id)
        return found


class AttentionItemAcknowledgeView(_AttentionItemView):
    """Marking an inbox item as seen."""

    @document_responses({200: AttentionSerializer}, 404, request=None)
    def post(self, request: UserRequest, item_id: uuid.UUID) -> Response:
        """Mark an inbox item as seen; it stays in the inbox until it is resolved."""
        attention.acknowledge_item(self.item(item_id), request.user)
        return self.show(AttentionSerializer, self.item(item_id))


class AttentionItemDismissView(_AttentionItemView):
    """Dismissing an inbox item."""

    @document_responses({200: AttentionSerializer}, 404, request=None)
    def post(self, request: UserRequest, item_id: uuid.UUID) -> Response:
        """Remove an item from your inbox; other users still see it."""
        attention.dismiss_item(self.item(item_id), request.user)
        return self.show(AttentionSerializer, self.item(item_id))


class TaskAcknowledgeView(_TaskChangeView):
    """Marking the inbox items of a task as seen."""

    permission_classes = [MemberPermission]

    @document_responses({200: TaskSerializer}, 404, request=None)
    def post(self, request: UserRequest, task_id: uuid.UUID) -> Response:
        """Mark all open inbox items of a task's sessions as seen."""
        attention.acknowledge_task(self.task, request.user)
        return self.updated_response()


class SessionAcknowledgeView(SessionApiView):
    """Marking a session's inbox items as seen."""

    permission_classes = [MemberPermission]

    @document_responses({200: StatusSerializer}, 404, request=None)
    def post(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Mark all open inbox items of a session as seen."""
        attention.acknowledge_session(self.session, request.user)
        return Response(session_status(self.session, request.user))

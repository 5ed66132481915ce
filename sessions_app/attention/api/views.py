"""API views of inbox items."""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.shortcuts import get_object_or_404
from rest_framework.response import Response

from sessions_app.accounts.requests import UserRequest
from sessions_app.api.base_views import ApiView, SessionApiView
from sessions_app.api.serializers.common import document_responses
from sessions_app.attention.api.serializers import AttentionQuerySerializer, AttentionSerializer
from sessions_app.attention.services import inbox
from sessions_app.board.api.serializers import (
    TaskSerializer,
)
from sessions_app.board.api.views import MemberPermission, _TaskChangeView
from sessions_app.models import AttentionItem
from sessions_app.sessions.api.serializers import StatusSerializer
from sessions_app.sessions.services.status import session_status


class AttentionListView(ApiView):
    """The inbox."""

    permission_classes = [MemberPermission]

    @document_responses({200: AttentionSerializer(many=True)}, 400, parameters=[AttentionQuerySerializer])
    def get(self, request: UserRequest) -> Response:
        """List inbox items, the most urgent first; with ``state=all``, resolved items too, newest first."""
        query = self.query(AttentionQuerySerializer)
        return self.list(AttentionSerializer, _attention_items(request.user, query))


def _attention_items(user: User, query: dict[str, Any]) -> QuerySet[AttentionItem]:
    rows = {
        "open": inbox.open_items_for,
        "news": inbox.unseen_items_for,
        "all": inbox.visible_items,
    }[query["state"]](user)
    named = {"kind": "kind", "task": "task_id", "session": "session_id"}
    rows = rows.filter(**{column: query[name] for name, column in named.items() if name in query})
    if query["mine"]:
        return rows.filter(inbox.own_items(user))
    return rows


class _AttentionItemView(ApiView):
    """Base class of views of one inbox item."""

    permission_classes = [MemberPermission]

    def item(self, item_id: uuid.UUID) -> AttentionItem:
        """Return the item. Raises Http404 if it belongs to another team."""
        found: AttentionItem = get_object_or_404(inbox.visible_items(self.request.user), id=item_id)
        return found


class AttentionItemAcknowledgeView(_AttentionItemView):
    """Marking an inbox item as seen."""

    @document_responses({200: AttentionSerializer}, 404, request=None)
    def post(self, request: UserRequest, item_id: uuid.UUID) -> Response:
        """Mark an inbox item as seen; it stays in the inbox until it is resolved."""
        inbox.acknowledge_item(self.item(item_id), request.user)
        return self.show(AttentionSerializer, self.item(item_id))


class AttentionItemDismissView(_AttentionItemView):
    """Dismissing an inbox item."""

    @document_responses({200: AttentionSerializer}, 404, request=None)
    def post(self, request: UserRequest, item_id: uuid.UUID) -> Response:
        """Remove an item from your inbox; other users still see it, except one of the kind `finish`."""
        inbox.dismiss_item(self.item(item_id), request.user)
        return self.show(AttentionSerializer, self.item(item_id))


class TaskAcknowledgeView(_TaskChangeView):
    """Marking the inbox items of a task as seen."""

    permission_classes = [MemberPermission]

    @document_responses({200: TaskSerializer}, 404, request=None)
    def post(self, request: UserRequest, task_id: uuid.UUID) -> Response:
        """Mark all open inbox items of a task's sessions as seen."""
        inbox.acknowledge_task(self.task, request.user)
        return self.updated_response()


class SessionAcknowledgeView(SessionApiView):
    """Marking a session's inbox items as seen."""

    permission_classes = [MemberPermission]

    @document_responses({200: StatusSerializer}, 404, request=None)
    def post(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Mark all open inbox items of a session as seen."""
        inbox.acknowledge_session(self.session, request.user)
        return Response(session_status(self.session, request.user))

"""The inbox: what needs the user, and what the user says of it. Nothing here changes a session."""

from __future__ import annotations

import uuid
from typing import Any

from django.db.models import QuerySet
from django.shortcuts import get_object_or_404
from rest_framework.permissions import SAFE_METHODS, IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from sessions_app.api.base import ApiView, SessionView
from sessions_app.api.serializers.attention import AttentionQuery, AttentionSerializer
from sessions_app.api.serializers.common import described
from sessions_app.api.serializers.sessions import StatusSerializer
from sessions_app.models import AttentionItem
from sessions_app.services import attention
from sessions_app.services.status import session_status


class OwnMarks(IsAuthenticated):
    """Whoever sees something may say that they have; a key that only reads may not."""

    def has_permission(self, request: Request, view: Any) -> bool:
        """Whether this request may go on; Http404 where the address names what is not the user's to see."""
        if not super().has_permission(request, view):
            return False
        view.team_of_address()
        return request.method in SAFE_METHODS or not getattr(request.user, "only_reads", False)


class Attention(ApiView):
    """The inbox."""

    permission_classes = [OwnMarks]

    @described({200: AttentionSerializer(many=True)}, 400, parameters=[AttentionQuery])
    def get(self, request: Request) -> Response:
        """List what needs the user, the most pressing first; with ``state=all`` what is over, too, newest first."""
        asked = self.query(AttentionQuery)
        return self.list(AttentionSerializer, _found(request.user, asked))


def _found(user: Any, asked: dict[str, Any]) -> QuerySet[AttentionItem]:
    rows = {
        "open": attention.for_user,
        "news": attention.news_for,
        "all": attention.visible_items,
    }[asked["state"]](user)
    named = {"kind": "kind", "task": "task_id", "session": "session_id"}
    rows = rows.filter(**{column: asked[name] for name, column in named.items() if name in asked})
    return rows.filter(attention.mine(user)) if asked["mine"] else rows


class _OneItem(ApiView):
    """A view of one item of the user's."""

    permission_classes = [OwnMarks]

    def item(self, item_id: uuid.UUID) -> AttentionItem:
        """It; Http404 for another team's."""
        found: AttentionItem = get_object_or_404(attention.visible_items(self.request.user), id=item_id)
        return found


class AcknowledgeItem(_OneItem):
    """Having seen one."""

    @described({200: AttentionSerializer}, 404, request=None)
    def post(self, request: Request, item_id: uuid.UUID) -> Response:
        """Say that the user has seen it; it stays until it is settled."""
        attention.acknowledge(self.item(item_id), request.user)
        return self.show(AttentionSerializer, self.item(item_id))


class DismissItem(_OneItem):
    """Wanting to hear no more of one."""

    @described({200: AttentionSerializer}, 404, request=None)
    def post(self, request: Request, item_id: uuid.UUID) -> Response:
        """Take it out of the user's inbox; others are still shown it."""
        attention.dismiss(self.item(item_id), request.user)
        return self.show(AttentionSerializer, self.item(item_id))


class AcknowledgeSession(SessionView):
    """Having seen a session."""

    permission_classes = [OwnMarks]

    @described({200: StatusSerializer}, 404, request=None)
    def post(self, request: Request, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Say that the user has seen all that is open of a session."""
        attention.acknowledge_session(self.session, request.user)
        return Response(session_status(self.session, request.user))

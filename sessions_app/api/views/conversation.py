"""What a session has said and done."""

from __future__ import annotations

import uuid

from rest_framework.request import Request
from rest_framework.response import Response

from sessions_app.api.base import SessionView
from sessions_app.api.paging import Behind, paged
from sessions_app.api.serializers.common import described
from sessions_app.api.serializers.conversation import (
    EventSerializer,
    MessageSerializer,
    ReceiptSerializer,
    RunSerializer,
)
from sessions_app.models import texts_of


class FewBehind(Behind):
    """Messages may be long, so fewer come at once."""

    default_limit = 100
    max_limit = 500


class Messages(SessionView):
    """The conversation."""

    pagination_class = FewBehind

    @described({200: MessageSerializer(many=True)}, 400, 404)
    def get(self, request: Request, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """List the messages behind ``after``, each with its whole text."""
        found, paginator = paged(self.session.messages.all(), self)
        shown = MessageSerializer(found, many=True, context={"texts": texts_of(found)}).data
        return paginator.get_paginated_response(shown)


class Events(SessionView):
    """The log."""

    pagination_class = Behind

    @described({200: EventSerializer(many=True)}, 400, 404)
    def get(self, request: Request, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """List the events behind ``after``."""
        return self.list(EventSerializer, self.session.events.all(), session=self.session)


class Receipts(SessionView):
    """How the session's resumes ended."""

    @described({200: ReceiptSerializer(many=True)}, 404)
    def get(self, request: Request, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """List the receipts, newest first."""
        return self.list(ReceiptSerializer, self.session.receipts.all())


class Runs(SessionView):
    """The session's turns and waits."""

    @described({200: RunSerializer(many=True)}, 404)
    def get(self, request: Request, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """List the runs, oldest first."""
        return self.list(RunSerializer, self.session.runs.all())

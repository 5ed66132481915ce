"""API views of messages and events."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Final

from django.db.models import OuterRef, Subquery, Sum
from django.db.models.functions import Coalesce, Length
from rest_framework.response import Response

from sessions_app.accounts.requests import UserRequest
from sessions_app.api.base_views import SessionApiView
from sessions_app.api.pagination import SequencePagination, paginate
from sessions_app.api.serializers.common import document_responses
from sessions_app.models import MessagePart, text_pieces, texts_of
from sessions_app.stream.api.serializers import EventSerializer, MessageQuerySerializer, MessageSerializer

MAX_TEXT: Final = 4 << 20
"""Characters of one text that a response contains."""


class MessagePagination(SequencePagination):
    """Smaller pages, because messages may be long."""

    default_limit = 100
    max_limit = 500

    def size_of(self, row: Any) -> int:
        """Return the bytes that a message counts for, with its text."""
        text_length: int = row.text_length
        return super().size_of(row) + min(text_length, MAX_TEXT)


class MessageListView(SessionApiView):
    """The conversation."""

    pagination_class = MessagePagination

    @document_responses({200: MessageSerializer(many=True)}, 400, 404, parameters=[MessageQuerySerializer])
    def get(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """List the messages after ``after``, with their text.

        A text is cut after 4,194,304 characters. To read the rest, ask for its message again (``limit=1``, with
        ``after`` one less than its ``seq``), and set ``text_from`` to the characters that you have, until you have
        ``text_length`` of them.
        """
        parts = MessagePart.objects.filter(message=OuterRef("pk")).order_by().values("message")
        lengths = parts.annotate(length=Sum(Length("text"))).values("length")
        rows = self.session.messages.annotate(text_length=Coalesce(Subquery(lengths), 0))
        text_from = self.query(MessageQuerySerializer).get("text_from", 0)
        found, paginator = paginate(rows, self)
        shown = MessageSerializer(found, many=True, context={"texts": _texts_of_page(found, text_from)}).data
        return paginator.get_paginated_response(shown)


def _texts_of_page(messages: list[Any], text_from: int) -> Mapping[uuid.UUID, str]:
    """Return the texts of the messages, up to MAX_TEXT characters of each; of the first one, those at ``text_from``."""
    if not text_from and all(message.text_length <= MAX_TEXT for message in messages):
        return texts_of(messages)
    begins = {message.id: text_from for message in messages[:1]}
    return text_pieces(messages, begins, MAX_TEXT)


class EventListView(SessionApiView):
    """The log."""

    pagination_class = SequencePagination

    @document_responses({200: EventSerializer(many=True)}, 400, 404)
    def get(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """List the events after ``after``."""
        return self.list(EventSerializer, self.session.events.all(), session=self.session)

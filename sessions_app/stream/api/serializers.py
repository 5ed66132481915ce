"""Serializers of messages and events."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from sessions_app.api.pagination import MAX_SEQ
from sessions_app.api.serializers.common import (
    StrictModelSerializer,
)
from sessions_app.models import Message, SessionEvent
from sessions_app.timeline.services import event_json


class MessageQuerySerializer(serializers.Serializer[Any]):
    """Query of the list of messages, besides the page."""

    text_from = serializers.IntegerField(
        min_value=0,
        max_value=MAX_SEQ,
        required=False,
        help_text="Skip so many characters of the text of the first message.",
    )


class MessageSerializer(StrictModelSerializer):
    """A message with its text, which the view passes in the context as ``texts``, by id."""

    text = serializers.SerializerMethodField()
    text_length = serializers.IntegerField(
        read_only=True, help_text="Characters of the whole text; if `text` has fewer, `text_from` reads the others."
    )

    class Meta:
        model = Message
        fields = ("id", "seq", "updated_seq", "role", "text", "text_length", "payload", "complete", "created_at")
        read_only_fields = fields

    def get_text(self, message: Message) -> str:
        """Return the text."""
        texts: dict[Any, str] = self.context["texts"]
        return texts[message.id]


class EventSerializer(serializers.Serializer[Any]):
    """An event of the session's log, as the WebSocket sends it."""

    type = serializers.CharField()
    event = serializers.CharField()
    seq = serializers.IntegerField()
    epoch = serializers.CharField()
    session_id = serializers.UUIDField()
    task_id = serializers.UUIDField()
    at = serializers.DateTimeField()
    payload = serializers.DictField()

    def to_representation(self, instance: SessionEvent) -> dict[str, Any]:
        """Return the object that the WebSocket sends."""
        return event_json(instance, self.context["session"])

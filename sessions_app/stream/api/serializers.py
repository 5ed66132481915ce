"""Serializers of messages, events and turns."""

from __future__ import annotations

from typing import Any, ClassVar

from rest_framework import serializers

from sessions_app.api.pagination import MAX_SEQ
from sessions_app.api.serializers.common import (
    StrictModelSerializer,
)
from sessions_app.models import Message, SessionEvent, Turn
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


class RunSerializer(StrictModelSerializer):
    """A turn or a wait. What is null is not known, or not yet."""

    usage = serializers.SerializerMethodField(
        help_text="The figures that the agent reported in this turn: `input_tokens`, `output_tokens`, `cached_tokens`, "
        "`total_tokens`, `context_used`, `context_size`, `cost` and `currency`. Some agents count the whole "
        "conversation."
    )

    class Meta:
        model = Turn
        fields = (
            "id",
            "message_id",
            "state",
            "wait_kind",
            "wait_id",
            "wait_reason",
            "since_seq",
            "deadline_at",
            "waited",
            "reason",
            "started_at",
            "ended_at",
            "origin",
            "first_seq",
            "last_seq",
            "stop_reason",
            "usage",
            "snapshot_before",
            "snapshot_after",
        )
        read_only_fields = fields
        extra_kwargs: ClassVar = {
            "origin": {"help_text": "Who began the turn: a prompt, Kandev itself, or the agent."},
            "first_seq": {"help_text": "The line of the log that recorded its beginning."},
            "last_seq": {"help_text": "The line of the log that recorded its end."},
            "stop_reason": {"help_text": "Why the agent stopped, in its own words."},
            "snapshot_before": {"help_text": "The newest snapshot of the workspace when the agent got the prompt."},
            "snapshot_after": {"help_text": "The snapshot that was taken at its end, if anything had changed."},
        }

    def get_usage(self, turn: Turn) -> dict[str, Any] | None:
        """Return the figures; None if there are none."""
        return dict(turn.usage or {}) or None

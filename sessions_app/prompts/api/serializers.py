"""Serializers of prompts and their files."""

from __future__ import annotations

import base64
from typing import Any

from rest_framework import serializers

from sessions_app.api.base_views import MAX_PROMPT_BODY
from sessions_app.api.serializers.common import (
    PROMPT_STATES,
    SizedListField,
    StrictCharField,
    StrictModelSerializer,
    StrictSerializer,
    choice_field,
)
from sessions_app.kernel.rules.states import PromptState
from sessions_app.models import Prompt
from sessions_app.prompts.rules.attachments import MAX_FILES
from sessions_app.sessions.services.intents import TEXT_LIMIT


class AttachmentSerializer(serializers.Serializer[Any]):
    """A file of a prompt; ``attachments/{sha256}/`` has its content."""

    name = serializers.CharField()
    media_type = serializers.CharField()
    size = serializers.IntegerField()
    sha256 = serializers.CharField()


class PromptSerializer(StrictModelSerializer):
    """A prompt and its delivery state."""

    attachments = AttachmentSerializer(many=True, read_only=True)
    resent_as = serializers.CharField(source="resent_as.message_id", read_only=True, default=None, allow_null=True)
    continued_by = serializers.CharField(
        source="continued_by.message_id", read_only=True, default=None, allow_null=True
    )

    class Meta:
        model = Prompt
        fields = (
            *("message_id", "kind", "state", "text", "attachments", "by", "resent_as", "continued_by"),
            *("created_at", "updated_at"),
        )
        read_only_fields = fields


class NewAttachmentSerializer(StrictSerializer):
    """A file of a prompt. Its content decides its type; ``media_type`` is only compared with it."""

    name = StrictCharField(max_length=1000)
    content = StrictCharField(
        allow_blank=True, trim_whitespace=False, max_length=MAX_PROMPT_BODY, help_text="The content in base64."
    )
    media_type = StrictCharField(max_length=100, allow_blank=True, default="")

    def validate_content(self, value: str) -> bytes:
        """Return the content."""
        try:
            return base64.b64decode(value, validate=True)
        except ValueError as error:
            raise serializers.ValidationError("This is not base64.") from error


class TextPromptSerializer(StrictSerializer):
    """A prompt without files, as a socket sends it."""

    message_id = StrictCharField(max_length=128, trim_whitespace=False)
    text = StrictCharField(trim_whitespace=False, max_length=TEXT_LIMIT)


class PromptRequestSerializer(TextPromptSerializer):
    """A prompt to send. ``message_id`` is chosen by the client, so that the request can be repeated safely."""

    attachments = SizedListField(child=NewAttachmentSerializer(), required=False, max_length=MAX_FILES)


class PromptAnswerSerializer(serializers.Serializer[Prompt]):
    """The response to a prompt that was accepted; repeating the request returns the same response."""

    message_id = serializers.CharField()
    session_id = serializers.UUIDField()
    kind = serializers.CharField()
    state = serializers.SerializerMethodField()
    created_at = serializers.DateTimeField()

    def get_state(self, prompt: Prompt) -> str:
        """Return *queued*, the state in which every prompt starts; ``prompts/`` has its current state."""
        return PromptState.QUEUED.value


class PromptQuerySerializer(serializers.Serializer[Any]):
    """Filter of prompts by state; all of them if it is omitted."""

    state = choice_field(PROMPT_STATES, required=False)

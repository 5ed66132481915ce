"""What a session has said and done: messages, events, receipts, runs, prompts, permissions."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from sessions_app.api.fields import RowSerializer, Text
from sessions_app.api.words import PROMPT_STATES, one_of
from sessions_app.domain.states import PromptState
from sessions_app.models import ContinuityReceipt, Message, PermissionRequest, Prompt, Run, SessionEvent
from sessions_app.services.feed import event_json


class MessageSerializer(RowSerializer):
    """A message; its whole text comes with the context as ``texts``, by id."""

    text = serializers.SerializerMethodField()

    class Meta:
        model = Message
        fields = ("id", "seq", "updated_seq", "role", "text", "payload", "complete", "created_at")
        read_only_fields = fields

    def get_text(self, message: Message) -> str:
        """The whole text."""
        texts: dict[Any, str] = self.context["texts"]
        return texts[message.id]


class EventSerializer(serializers.Serializer[Any]):
    """A line of the log, as the socket sends it; the session comes with the context."""

    type = serializers.CharField()
    event = serializers.CharField()
    seq = serializers.IntegerField()
    epoch = serializers.CharField()
    session_id = serializers.UUIDField()
    task_id = serializers.UUIDField()
    at = serializers.DateTimeField()
    payload = serializers.DictField()

    def to_representation(self, instance: SessionEvent) -> dict[str, Any]:
        """The object that the socket sends."""
        return event_json(instance, self.context["session"])


class ReceiptSerializer(RowSerializer):
    """How one resume ended."""

    class Meta:
        model = ContinuityReceipt
        fields = ("id", "kind", "verified", "strategy", "reason", "evidence", "created_at")
        read_only_fields = fields


class RunSerializer(RowSerializer):
    """One turn or wait."""

    class Meta:
        model = Run
        fields = ("id", "message_id", "state", "wait_kind", "waited", "reason", "started_at", "ended_at")
        read_only_fields = fields


class PromptSerializer(RowSerializer):
    """A row of the ledger."""

    resent_as = serializers.CharField(source="resent_as.message_id", read_only=True, default=None)
    continued_by = serializers.CharField(source="continued_by.message_id", read_only=True, default=None)

    class Meta:
        model = Prompt
        fields = ("message_id", "kind", "state", "text", "by", "resent_as", "continued_by", "created_at", "updated_at")
        read_only_fields = fields


class PromptRequest(serializers.Serializer[Any]):
    """A prompt; ``message_id`` is the caller's own name for it, so that it can be given again."""

    message_id = Text(max_length=128, trim_whitespace=False)
    text = Text(trim_whitespace=False)


class PromptAnswer(serializers.Serializer[Prompt]):
    """What is answered when a prompt is taken; the same for ever, for a request that is given again."""

    message_id = serializers.CharField()
    session_id = serializers.UUIDField()
    kind = serializers.CharField()
    state = serializers.SerializerMethodField()
    created_at = serializers.DateTimeField()

    def get_state(self, prompt: Prompt) -> str:
        """Every prompt begins in the queue; ``prompts/`` says how far it has come."""
        return PromptState.QUEUED.value


class PromptQuery(serializers.Serializer[Any]):
    """Which prompts are listed; without a state all of them."""

    state = one_of(PROMPT_STATES, required=False)


class PermissionSerializer(RowSerializer):
    """A question that the agent asked before acting."""

    class Meta:
        model = PermissionRequest
        fields = ("id", "run", "tool_call", "options", "state", "option_id", "requested_at", "settled_at")
        read_only_fields = fields


class PermissionAnswer(serializers.Serializer[Any]):
    """The option that was chosen."""

    option_id = Text(max_length=128)
    resume_token = Text(required=False, allow_blank=True, max_length=512, write_only=True)


class PermissionQuery(serializers.Serializer[Any]):
    """Which permissions are listed; without a state all of them."""

    state = one_of(PermissionRequest.STATES, required=False)


class Entry(serializers.Serializer[Any]):
    """Something in a directory of the workspace."""

    name = serializers.CharField()
    type = serializers.CharField()
    size = serializers.IntegerField(allow_null=True)


class Folder(serializers.Serializer[Any]):
    """A directory of the workspace (documentation: agentctl makes it)."""

    path = serializers.CharField()
    entries = Entry(many=True)
    truncated = serializers.BooleanField()


class FileContent(serializers.Serializer[Any]):
    """A file of the workspace (documentation: agentctl makes it)."""

    path = serializers.CharField()
    size = serializers.IntegerField()
    encoding = serializers.CharField()
    content = serializers.CharField()
    truncated = serializers.BooleanField()

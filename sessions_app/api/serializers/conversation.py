"""Serializers of messages, events, receipts, runs, prompts, permissions and waits."""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Any, ClassVar, Final

from rest_framework import serializers

from sessions_app.api.base_views import MAX_PROMPT_BODY
from sessions_app.api.pagination import MAX_SEQ
from sessions_app.api.serializers.common import (
    PROMPT_STATES,
    SizedDictField,
    SizedJSONField,
    SizedListField,
    StrictCharField,
    StrictModelSerializer,
    StrictSerializer,
    choice_field,
)
from sessions_app.domain.attachments import MAX_FILES
from sessions_app.domain.states import PermissionState, PromptState, QuestionStatus
from sessions_app.domain.verification import Verified
from sessions_app.domain.wait_tokens import WaitKind
from sessions_app.models import ContinuityReceipt, Message, PermissionRequest, Prompt, ResumeToken, SessionEvent, Turn
from sessions_app.services.intents import TEXT_LIMIT
from sessions_app.services.timeline import event_json
from sessions_app.services.waits import shown_secret


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


class ReceiptSerializer(StrictModelSerializer):
    """A continuity receipt: how one resume ended."""

    verified = choice_field(Verified, read_only=True)

    class Meta:
        model = ContinuityReceipt
        fields = ("id", "kind", "verified", "strategy", "reason", "evidence", "created_at")
        read_only_fields = fields


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


class PermissionSerializer(StrictModelSerializer):
    """A permission that the agent requests before it acts, or a question that it asks (``kind``)."""

    question_status = choice_field(QuestionStatus, read_only=True)
    options = serializers.JSONField(
        source="offered_options",
        read_only=True,
        help_text="The possible answers. For an action that the agent does not describe, none of them is lasting.",
    )
    unknown_action = serializers.BooleanField(
        source="is_unknown_action",
        read_only=True,
        help_text="Whether the agent says nothing about the action: no title, kind, input, content or files.",
    )

    resume_token = serializers.SerializerMethodField()
    expires_at = serializers.SerializerMethodField()
    answered_by = serializers.SerializerMethodField()

    class Meta:
        model = PermissionRequest
        fields = (
            "id",
            "run",
            "tool_call",
            "options",
            "unknown_action",
            "state",
            "option_id",
            "kind",
            "question",
            "question_status",
            "answer",
            "reason",
            "requested_at",
            "settled_at",
            "resume_token",
            "expires_at",
            "answered_by",
        )
        read_only_fields = fields

    def _token(self, asked: PermissionRequest) -> ResumeToken | None:
        found: dict[str, ResumeToken] = self.context["tokens"]
        return found.get(asked.id)

    def get_resume_token(self, asked: PermissionRequest) -> str | None:
        """Return the key to answer with, if the user may answer and the key is still valid; else null."""
        return shown_secret(self._token(asked)) if self.context["may_answer"] else None

    def get_expires_at(self, asked: PermissionRequest) -> datetime | None:
        """Return when the request expires unanswered; null if it never does."""
        token = self._token(asked)
        return token.expires_at if token else None

    def get_answered_by(self, asked: PermissionRequest) -> str | None:
        """Return the name of the user whose answer was used; null if there is none."""
        token = self._token(asked)
        return token.consumed_by.get_username() if token and token.consumed_by else None


class PermissionAnswerSerializer(serializers.Serializer[Any]):
    """The chosen option, the permission's key, and for an accepted form the fields of its schema."""

    option_id = StrictCharField(max_length=128)
    content = SizedDictField(default=None, allow_null=True, write_only=True)
    resume_token = StrictCharField(default="", allow_blank=True, max_length=512, write_only=True)


_INTERNAL_WAIT_KINDS: Final = "You cannot request a wait of the kind “{input}”. Use “external” or “tool_result”."
"""Only an agent can request a permission, so that kind of wait is not offered."""


class NewWaitSerializer(serializers.Serializer[Any]):
    """An external wait of an idle session; without a deadline it never expires."""

    kind = choice_field(
        [WaitKind.EXTERNAL, WaitKind.TOOL_RESULT], error_messages={"invalid_choice": _INTERNAL_WAIT_KINDS}
    )
    reason = StrictCharField(max_length=2000, allow_blank=True, default="")
    deadline = serializers.DateTimeField(default=None, allow_null=True)


class WaitAgainSerializer(serializers.Serializer[Any]):
    """The new deadline of a wait that ended without an answer; null for the same duration as before."""

    deadline = serializers.DateTimeField(default=None, allow_null=True)


class WaitAnswerSerializer(serializers.Serializer[Any]):
    """A wait. Its key is shown only in this response."""

    run_id = serializers.UUIDField()
    wait_id = serializers.CharField()
    resume_token = serializers.CharField()
    deadline = serializers.DateTimeField(allow_null=True)


class RedemptionSerializer(serializers.Serializer[Any]):
    """The result of the wait that the key belongs to."""

    resume_token = StrictCharField(max_length=512)
    payload = SizedJSONField(default=None, allow_null=True, max_bytes=6 * TEXT_LIMIT)
    idempotency_key = StrictCharField(max_length=128, allow_blank=True, default="")


class RedemptionAnswerSerializer(serializers.Serializer[Any]):
    """The run that continues, and the derived status it had at that time."""

    run_id = serializers.UUIDField()
    status = serializers.CharField()


class PermissionQuerySerializer(serializers.Serializer[Any]):
    """Filter of permissions by state; all of them if it is omitted."""

    state = choice_field(PermissionState, required=False)

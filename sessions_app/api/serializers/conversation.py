"""What a session has said and done: messages, events, receipts, runs, prompts, permissions."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from rest_framework import serializers

from sessions_app.api.serializers.common import (
    PROMPT_STATES,
    StrictCharField,
    StrictModelSerializer,
    StrictSerializer,
    choice_field,
)
from sessions_app.domain.states import PermissionState, PromptState
from sessions_app.domain.verification import Verified
from sessions_app.domain.wait_tokens import WaitKind
from sessions_app.models import ContinuityReceipt, Message, PermissionRequest, Prompt, ResumeToken, Run, SessionEvent
from sessions_app.services.timeline import event_json
from sessions_app.services.waits import shown_secret


class MessageSerializer(StrictModelSerializer):
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


class ReceiptSerializer(StrictModelSerializer):
    """How one resume ended."""

    verified = choice_field(Verified, source="proof", read_only=True)

    class Meta:
        model = ContinuityReceipt
        fields = ("id", "kind", "verified", "strategy", "reason", "evidence", "created_at")
        read_only_fields = fields


class RunSerializer(StrictModelSerializer):
    """One turn or wait."""

    class Meta:
        model = Run
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
        )
        read_only_fields = fields


class PromptSerializer(StrictModelSerializer):
    """A row of the ledger."""

    resent_as = serializers.CharField(source="resent_as.message_id", read_only=True, default=None, allow_null=True)
    continued_by = serializers.CharField(
        source="continued_by.message_id", read_only=True, default=None, allow_null=True
    )

    class Meta:
        model = Prompt
        fields = ("message_id", "kind", "state", "text", "by", "resent_as", "continued_by", "created_at", "updated_at")
        read_only_fields = fields


class PromptRequestSerializer(StrictSerializer):
    """A prompt, of text alone; ``message_id`` is the caller's own name for it, so that it can be given again."""

    message_id = StrictCharField(max_length=128, trim_whitespace=False)
    text = StrictCharField(trim_whitespace=False)


class PromptAnswerSerializer(serializers.Serializer[Prompt]):
    """What is answered when a prompt is taken; the same for ever, for a request that is given again."""

    message_id = serializers.CharField()
    session_id = serializers.UUIDField()
    kind = serializers.CharField()
    state = serializers.SerializerMethodField()
    created_at = serializers.DateTimeField()

    def get_state(self, prompt: Prompt) -> str:
        """Every prompt begins in the queue; ``prompts/`` says how far it has come."""
        return PromptState.QUEUED.value


class PromptQuerySerializer(serializers.Serializer[Any]):
    """Which prompts are listed; without a state all of them."""

    state = choice_field(PROMPT_STATES, required=False)


class PermissionSerializer(StrictModelSerializer):
    """A question that the agent asked before acting; the keys come with the context as ``tokens``, by id."""

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
            "state",
            "option_id",
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
        """The key to answer with, for those who may, as long as it opens anything."""
        return shown_secret(self._token(asked)) if self.context["may_answer"] else None

    def get_expires_at(self, asked: PermissionRequest) -> datetime | None:
        """When the agent is answered that nobody did; null: never."""
        token = self._token(asked)
        return token.expires_at if token else None

    def get_answered_by(self, asked: PermissionRequest) -> str | None:
        """Whose answer counted."""
        token = self._token(asked)
        return token.consumed_by.get_username() if token and token.consumed_by else None


class PermissionAnswerSerializer(serializers.Serializer[Any]):
    """The option that was chosen, and the permission's key."""

    option_id = StrictCharField(max_length=128)
    resume_token = StrictCharField(default="", allow_blank=True, max_length=512, write_only=True)


_INTERNAL_WAIT_KINDS: Final = (
    "A wait of the kind “{input}” is none that can be asked for. Take “external” or “tool_result”."
)
"""A permission is asked for by an agent alone."""


class NewWaitSerializer(serializers.Serializer[Any]):
    """What a session at rest waits for, from outside; without a deadline for ever."""

    kind = choice_field(
        [WaitKind.EXTERNAL, WaitKind.TOOL_RESULT], error_messages={"invalid_choice": _INTERNAL_WAIT_KINDS}
    )
    reason = StrictCharField(max_length=2000, allow_blank=True, default="")
    deadline = serializers.DateTimeField(default=None, allow_null=True)


class WaitAgainSerializer(serializers.Serializer[Any]):
    """Until when a wait that ended without an answer is begun anew; null: for as long as before."""

    deadline = serializers.DateTimeField(default=None, allow_null=True)


class WaitAnswerSerializer(serializers.Serializer[Any]):
    """A wait; its key is shown here and nowhere else."""

    run_id = serializers.UUIDField()
    wait_id = serializers.CharField()
    resume_token = serializers.CharField()
    deadline = serializers.DateTimeField(allow_null=True)


class RedemptionSerializer(serializers.Serializer[Any]):
    """What has come, for the wait whose key this is."""

    resume_token = StrictCharField(max_length=512)
    payload = serializers.JSONField(default=None, allow_null=True)
    idempotency_key = StrictCharField(max_length=128, allow_blank=True, default="")


class RedemptionAnswerSerializer(serializers.Serializer[Any]):
    """The run that goes on, and the derived status that it had then."""

    run_id = serializers.UUIDField()
    status = serializers.CharField()


class PermissionQuerySerializer(serializers.Serializer[Any]):
    """Which permissions are listed; without a state all of them."""

    state = choice_field(PermissionState, required=False)

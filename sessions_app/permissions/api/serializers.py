"""Serializers of the requests of agents."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from rest_framework import serializers

from sessions_app.api.serializers.common import (
    SizedDictField,
    StrictCharField,
    StrictModelSerializer,
    choice_field,
)
from sessions_app.kernel.rules.states import PermissionState, QuestionStatus
from sessions_app.models import PermissionRequest, WaitKey
from sessions_app.waits.services import shown_secret


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

    def _key(self, request: PermissionRequest) -> WaitKey | None:
        keys: dict[str, WaitKey] = self.context["keys"]
        return keys.get(request.id)

    def get_resume_token(self, request: PermissionRequest) -> str | None:
        """Return the key to answer with, if the user may answer and the key is still valid; else null."""
        if self.context["may_answer"]:
            return shown_secret(self._key(request))
        return None

    def get_expires_at(self, request: PermissionRequest) -> datetime | None:
        """Return when the request expires unanswered; null if it never does."""
        key = self._key(request)
        if key is None:
            return None
        return key.expires_at

    def get_answered_by(self, request: PermissionRequest) -> str | None:
        """Return the name of the user whose answer was used; null if there is none."""
        key = self._key(request)
        if key is None:
            return None
        return key.consumer_name


class PermissionAnswerSerializer(serializers.Serializer[Any]):
    """The chosen option, the permission's key, and for an accepted form the fields of its schema."""

    option_id = StrictCharField(max_length=128)
    content = SizedDictField(default=None, allow_null=True, write_only=True)
    resume_token = StrictCharField(default="", allow_blank=True, max_length=512, write_only=True)


class PermissionQuerySerializer(serializers.Serializer[Any]):
    """Filter of permissions by state; all of them if it is omitted."""

    state = choice_field(PermissionState, required=False)

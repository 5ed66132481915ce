"""The REST API of turns and waits."""

from __future__ import annotations

import uuid
from typing import Any, ClassVar

from rest_framework import serializers
from rest_framework.response import Response

from sessions_app.accounts.requests import UserRequest
from sessions_app.api.base_views import SessionApiView
from sessions_app.api.serializers.common import (
    StrictModelSerializer,
    document_responses,
)
from sessions_app.models import Turn


class RunSerializer(StrictModelSerializer):
    """A turn or a wait. What is null is not known, or not yet."""

    usage = serializers.SerializerMethodField(
        help_text="The figures that the agent reported in this turn: `input_tokens`, `output_tokens`, `cached_tokens`, "
        "`cache_write_tokens`, `total_tokens`, `context_used`, `context_size`, `cost` and `currency`. Some agents "
        "count the whole conversation."
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


class RunListView(SessionApiView):
    """The session's turns and waits."""

    @document_responses({200: RunSerializer(many=True)}, 404)
    def get(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """List the runs, oldest first."""
        return self.list(RunSerializer, self.session.runs.all())

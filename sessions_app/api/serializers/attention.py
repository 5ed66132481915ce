"""The inbox as the API shows it."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from sessions_app.api.fields import RowSerializer
from sessions_app.api.words import one_of
from sessions_app.domain.attention import AttentionKind
from sessions_app.models import AttentionItem

STATES = ("open", "news", "all")


class AttentionQuery(serializers.Serializer[Any]):
    """Which items: ``open`` is what is still true and not dismissed, ``news`` of it what the user has not seen."""

    state = one_of(STATES, default="open")
    kind = one_of(AttentionKind, required=False)
    task = serializers.UUIDField(required=False)
    session = serializers.UUIDField(required=False)
    mine = serializers.BooleanField(default=False)


class AttentionSerializer(RowSerializer):
    """One item, with what the user who asks has said of it.

    Of a workflow whose scheduled runs are paused: ``workflow_id`` is set, ``session_id`` and ``task_id`` are null,
    ``task_title`` is the workflow's name, and ``agent_profile`` is empty. Of a failed run: ``run_id`` is set, and
    ``session_id`` is null if it has no session.
    """

    session_id = serializers.UUIDField(read_only=True, allow_null=True)
    task_id = serializers.UUIDField(read_only=True, allow_null=True)
    workflow_id = serializers.UUIDField(read_only=True, allow_null=True)
    run_id = serializers.UUIDField(read_only=True, allow_null=True)
    task_title = serializers.CharField(source="title", read_only=True)
    team = serializers.CharField(source="about.team.name", read_only=True)
    agent_profile = serializers.CharField(source="session.agent_profile.name", read_only=True, default="")
    acknowledged_at = serializers.DateTimeField(read_only=True, allow_null=True)
    dismissed_at = serializers.DateTimeField(read_only=True, allow_null=True)
    url = serializers.SerializerMethodField()

    class Meta:
        model = AttentionItem
        fields = (
            *("id", "key", "kind", "session_id", "task_id", "workflow_id", "run_id", "task_title"),
            *("team", "agent_profile"),
            *("what", "why", "next_step", "detail", "url", "created_at", "resolved_at", "resolution"),
            *("acknowledged_at", "dismissed_at"),
        )
        read_only_fields = fields

    def get_url(self, item: AttentionItem) -> str:
        """Where it is settled: the path of the session's, the run's or the workflow's page."""
        return item.path

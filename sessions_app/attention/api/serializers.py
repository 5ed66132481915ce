"""Serializers of inbox items."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from sessions_app.api.serializers.common import (
    StrictModelSerializer,
    choice_field,
)
from sessions_app.attention.rules.notices import AttentionKind
from sessions_app.attention.services.wording import word_items
from sessions_app.models import AttentionItem

ATTENTION_STATES = ("open", "news", "all")


class AttentionQuerySerializer(serializers.Serializer[Any]):
    """Filter of inbox items: ``open`` items are unresolved and not dismissed; ``news`` is open and not seen yet."""

    state = choice_field(ATTENTION_STATES, default="open")
    kind = choice_field(AttentionKind, required=False)
    task = serializers.UUIDField(required=False)
    session = serializers.UUIDField(required=False)
    mine = serializers.BooleanField(default=False)


class _WordedItems(serializers.ListSerializer[Any]):
    """Items with their quotations, which are searched for secrets together."""

    def to_representation(self, data: Any) -> Any:
        """Return the items."""
        items = list(data)
        word_items(items)
        return super().to_representation(items)


class AttentionSerializer(StrictModelSerializer):
    """An inbox item, and whether the requesting user has seen or dismissed it.

    For a workflow whose scheduled runs are paused, ``workflow_id`` is set, ``session_id`` and ``task_id`` are null,
    ``task_title`` is the workflow's name, and ``agent_profile`` is empty. For a failed run, ``run_id`` is set, and
    ``session_id`` is null if the run has no session. An item of the kind ``system`` is about the deployment: only staff
    see it, all these ids are null, ``task_title`` is “System”, and ``team`` is empty.
    """

    session_id = serializers.UUIDField(read_only=True, allow_null=True)
    task_id = serializers.UUIDField(read_only=True, allow_null=True)
    workflow_id = serializers.UUIDField(read_only=True, allow_null=True)
    run_id = serializers.UUIDField(read_only=True, allow_null=True)
    task_title = serializers.CharField(source="title", read_only=True)
    team = serializers.CharField(source="team_name", read_only=True)
    agent_profile = serializers.CharField(source="session.agent_profile.name", read_only=True, default="")
    acknowledged_at = serializers.DateTimeField(read_only=True, allow_null=True)
    dismissed_at = serializers.DateTimeField(read_only=True, allow_null=True)
    url = serializers.SerializerMethodField()

    class Meta:
        model = AttentionItem
        list_serializer_class = _WordedItems
        fields = (
            *("id", "key", "kind", "session_id", "task_id", "workflow_id", "run_id", "task_title"),
            *("team", "agent_profile"),
            *("what", "why", "next_step", "detail", "url", "created_at", "resolved_at", "resolution"),
            *("acknowledged_at", "dismissed_at"),
        )
        read_only_fields = fields

    def to_representation(self, instance: AttentionItem) -> Any:
        """Return one item, with its quotations."""
        word_items([instance])
        return super().to_representation(instance)

    def get_url(self, item: AttentionItem) -> str:
        """Return the path of the page where the item can be resolved."""
        return item.path

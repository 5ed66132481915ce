"""What the API says about hosts."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from sessions_app.api.serializers.common import choice_field
from sessions_app.hosts.models import Role
from sessions_app.hosts.rules.life_signs import Life


class HostProcessSerializer(serializers.Serializer[Any]):
    """A process of a host and its last sign of life."""

    role = choice_field(Role, source="row.role")
    state = choice_field(Life, source="life")
    release = serializers.CharField(source="row.release")
    started_at = serializers.DateTimeField(source="row.started_at")
    beat_at = serializers.DateTimeField(source="row.beat_at")
    ended_at = serializers.DateTimeField(source="row.ended_at", allow_null=True)


class HostSerializer(serializers.Serializer[Any]):
    """A machine that Kandev runs on."""

    id = serializers.IntegerField(source="host.id")
    name = serializers.CharField(source="host.name")
    service = serializers.CharField(
        source="service_state", help_text="`cordoned`, `draining` or `lost`; empty if the host is in service."
    )
    sessions = serializers.IntegerField(help_text="How many agents run there.")
    unattended = serializers.BooleanField(
        source="is_unattended", help_text="Whether agents run there and no supervisor does."
    )
    processes = HostProcessSerializer(many=True)


class ClusterNodeSerializer(serializers.Serializer[Any]):
    """A node of a cluster on which sessions run."""

    name = serializers.CharField()
    executor = serializers.CharField(help_text="Its name; empty if the executor was deleted.")
    sessions = serializers.IntegerField(help_text="How many agents run there.")
    drain_command = serializers.CharField(
        help_text="The command by which its cluster drains it; empty for a name that no node can have."
    )


class RemainingSessionSerializer(serializers.Serializer[Any]):
    """A session that still runs on a host."""

    id = serializers.UUIDField(source="session_id")
    task = serializers.CharField()
    reason = serializers.CharField(help_text="What it waits for.")


class HostAnswerSerializer(serializers.Serializer[Any]):
    """What still runs on a host after an action."""

    running = serializers.IntegerField(source="count")
    attended = serializers.BooleanField(
        source="is_attended", help_text="Whether a supervisor runs there, which alone can stop sessions."
    )
    sessions = RemainingSessionSerializer(many=True, help_text="At most 200.")

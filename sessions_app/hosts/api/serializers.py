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


class UnreachedClusterSerializer(serializers.Serializer[Any]):
    """A cluster of which no session can be reached."""

    executor = serializers.UUIDField(source="executor_id")
    executor_name = serializers.CharField(source="executor")
    namespace = serializers.CharField(
        allow_blank=True, help_text="The uid of the namespace; empty if the cluster did not show it."
    )
    sessions = serializers.IntegerField(help_text="How many sessions wait for it.")


class LostClusterSerializer(serializers.Serializer[Any]):
    """Which cluster is declared lost."""

    executor = serializers.UUIDField(help_text="The executor of its sessions.")
    namespace = serializers.CharField(
        allow_blank=True, max_length=64, help_text="The uid of the namespace, as the list shows it."
    )


class LostClusterAnswerSerializer(serializers.Serializer[Any]):
    """What followed from a declaration."""

    sessions = serializers.IntegerField(help_text="How many sessions count as ended now.")


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

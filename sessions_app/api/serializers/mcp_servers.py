"""Serializers of the MCP servers of teams and repositories, and of those that an agent was given."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from sessions_app.api.serializers.common import StrictSerializer, choice_field
from sessions_app.services.agent_mcp_servers import REASONS, Level


@extend_schema_field(
    {
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {"type": "string"},
            "type": {"type": "string", "enum": ["http", "sse", "stdio"]},
            "url": {"type": "string"},
            "headers": {"type": "object", "additionalProperties": {"type": "string"}},
            "command": {"type": "string"},
            "args": {"type": "array", "items": {"type": "string"}},
            "env": {"type": "object", "additionalProperties": {"type": "string"}},
        },
    }
)
class McpServerField(serializers.DictField):
    """A server with ``url`` and ``headers``, or with ``command``, ``args`` and ``env``; the service checks it."""


class McpServerListRequestSerializer(StrictSerializer):
    """The new servers of a team or repository."""

    servers = serializers.ListField(child=McpServerField())


class McpServerListSerializer(serializers.Serializer[Any]):
    """The servers of a team or repository, with references (`secret:VARIABLE`) in place of secrets."""

    servers = serializers.ListField(child=McpServerField())
    updated_by = serializers.CharField(allow_null=True)
    updated_at = serializers.DateTimeField(allow_null=True)


class GivenMcpServerSerializer(serializers.Serializer[Any]):
    """A server that was chosen for the agent's last start."""

    name = serializers.CharField()
    reason = choice_field(
        REASONS, allow_blank=True, help_text="Why the agent was not given the server; empty if it was given."
    )
    variables = serializers.ListField(
        child=serializers.CharField(), help_text="With `secret_missing`: variables that the agent profile lacks."
    )

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        """Add ``from``, which is a keyword of Python: the level that defines the server."""
        return {**super().get_fields(), "from": choice_field(Level)}

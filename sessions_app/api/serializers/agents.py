"""Serializers of agents: their settings, their logins, and the MCP servers that they are given."""

from __future__ import annotations

from typing import Any, Final

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from executors_app.mcp_servers import MAX_PAIRS, MAX_SERVERS, VALUE_LIMIT
from executors_app.models import Executor
from executors_app.wire.agent_settings import AGENT, ENV_VAR, ID_LIMIT, TERMINAL
from executors_app.wire.protocol import LoginAction, LoginState
from sessions_app.api.serializers.common import (
    SizedDictField,
    SizedListField,
    StrictCharField,
    StrictSerializer,
    TeamField,
    choice_field,
)
from sessions_app.models.agents import APPLIED, REFUSED, WAITING
from sessions_app.services import agent_login
from sessions_app.services.mcp_servers import REASONS, Level


@extend_schema_field({"oneOf": [{"type": "string", "maxLength": ID_LIMIT}, {"type": "boolean"}]})
class SettingValueField(serializers.Field[Any, Any, Any, Any]):
    """The value of a setting: the value of a choice, or true or false."""

    default_error_messages = {"invalid": "Expected the value of a choice, or true or false."}

    def to_internal_value(self, data: Any) -> str | bool:
        """Return the value. Raises ValidationError for any other type."""
        if not isinstance(data, str | bool) or (isinstance(data, str) and not 0 < len(data) <= ID_LIMIT):
            self.fail("invalid")
        return data

    def to_representation(self, value: Any) -> Any:
        """Return the value as it is."""
        return value


class SettingRequestSerializer(StrictSerializer):
    """A change of one setting."""

    setting = StrictCharField(max_length=ID_LIMIT, trim_whitespace=False)
    value = SettingValueField()


class SettingChoiceSerializer(serializers.Serializer[Any]):
    """One choice of a setting."""

    value = serializers.CharField()
    name = serializers.CharField()
    description = serializers.CharField()


class SettingChangeSerializer(serializers.Serializer[Any]):
    """The last change of a setting; ``reason`` is the agent's, if it rejected the change."""

    id = serializers.CharField()
    value = SettingValueField()
    state = choice_field((WAITING, APPLIED, REFUSED))
    code = serializers.CharField()
    reason = serializers.CharField()
    by = serializers.CharField()
    at = serializers.DateTimeField()


class SettingSerializer(serializers.Serializer[Any]):
    """One setting with the value that the agent reported last; null: it reported none."""

    id = serializers.CharField()
    name = serializers.CharField()
    description = serializers.CharField()
    category = serializers.CharField()
    type = choice_field(("select", "boolean"))
    value = SettingValueField(allow_null=True)
    choices = SettingChoiceSerializer(many=True)
    change = SettingChangeSerializer(allow_null=True)


class CommandSerializer(serializers.Serializer[Any]):
    """A command that the agent understands at the start of a prompt, after a slash."""

    name = serializers.CharField()
    description = serializers.CharField()
    hint = serializers.CharField()


class AgentSettingsSerializer(serializers.Serializer[Any]):
    """What the agent reports about itself. Every text in it is the agent's own."""

    settings = SettingSerializer(many=True)
    commands = CommandSerializer(many=True)
    title = serializers.CharField()
    reported_at = serializers.DateTimeField(allow_null=True)


class LoginMethodSerializer(serializers.Serializer[Any]):
    """A way to log in that the agent has published; its texts are the agent's own."""

    id = serializers.CharField()
    name = serializers.CharField()
    description = serializers.CharField()
    type = choice_field((AGENT, TERMINAL, ENV_VAR))
    command = serializers.CharField(help_text="For `terminal`: the profile's command with the agent's additions.")
    variables = serializers.ListField(child=serializers.CharField(), help_text="For `env_var`: the required variables.")
    link = serializers.CharField(help_text="For `env_var`: where to get the values; may be empty.")


class LoginStateSerializer(serializers.Serializer[Any]):
    """The last login or logout that was requested for a session."""

    action = choice_field(tuple(LoginAction))
    method = serializers.CharField(help_text="Empty for a logout.")
    name = serializers.CharField()
    state = choice_field((agent_login.WAITING, agent_login.RUNNING, *LoginState, agent_login.WITHDRAWN))
    code = serializers.CharField(help_text="Why it failed: a code of docs/codes.md; otherwise empty.")
    reason = serializers.CharField()
    by = serializers.CharField()
    at = serializers.DateTimeField()
    ended_at = serializers.DateTimeField(allow_null=True)


class ReportedIdentitySerializer(serializers.Serializer[Any]):
    """Name and version as the agent reported them; empty: it reported none, or was not started yet."""

    name = serializers.CharField()
    version = serializers.CharField()


class AgentLoginSerializer(serializers.Serializer[Any]):
    """What an agent reported when it was last started, and the last login that was requested."""

    agent = ReportedIdentitySerializer()
    needs_version = serializers.CharField(help_text="The required version if this one is outdated; otherwise empty.")
    methods = LoginMethodSerializer(many=True)
    can_log_out = serializers.BooleanField()
    reported_at = serializers.DateTimeField(allow_null=True)
    last = LoginStateSerializer(allow_null=True)
    task = serializers.UUIDField(allow_null=True)
    session = serializers.UUIDField(allow_null=True, help_text="Null: the agent has not been tested here.")


class LoginRequestSerializer(StrictSerializer):
    """A login by one of the agent's methods of type `agent`."""

    method = StrictCharField(max_length=ID_LIMIT, trim_whitespace=False)


class PlaceSerializer(StrictSerializer):
    """Whose agent, and on which executor."""

    team = TeamField()
    executor = serializers.PrimaryKeyRelatedField(queryset=Executor.objects.all())


class _QueryTeamField(TeamField):
    """A team in a query, where an id is text."""

    def to_internal_value(self, data: Any) -> Any:
        """Return the team."""
        is_id = isinstance(data, str) and data.isascii() and data.isdigit() and len(data) < 10
        return super().to_internal_value(int(data) if is_id else data)


class PlaceQuerySerializer(PlaceSerializer):
    """Whose agent, and on which executor."""

    team = _QueryTeamField()


class PlaceLoginSerializer(PlaceSerializer):
    """A login of a team's agent on an executor."""

    method = StrictCharField(max_length=ID_LIMIT, trim_whitespace=False)


_VALUE: Final = {"type": "string", "maxLength": VALUE_LIMIT}


@extend_schema_field(
    {
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": _VALUE,
            "type": {"type": "string", "enum": ["http", "sse", "stdio"]},
            "url": _VALUE,
            "headers": {"type": "object", "additionalProperties": _VALUE, "maxProperties": MAX_PAIRS},
            "command": _VALUE,
            "args": {"type": "array", "items": _VALUE, "maxItems": MAX_PAIRS},
            "env": {"type": "object", "additionalProperties": _VALUE, "maxProperties": MAX_PAIRS},
        },
    }
)
class McpServerField(SizedDictField):
    """A server with ``url`` and ``headers``, or with ``command``, ``args`` and ``env``; the service checks it."""


class McpServerListRequestSerializer(StrictSerializer):
    """The new servers of a team or repository."""

    servers = SizedListField(child=McpServerField(), max_length=MAX_SERVERS)


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
        child=serializers.CharField(),
        help_text=(
            "With `secret_missing`: variables that the agent profile lacks. With `secret_withheld`: those that it does "
            "not give to the server's host."
        ),
    )

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        """Add ``from``, which is a keyword of Python: the level that defines the server."""
        return {**super().get_fields(), "from": choice_field(Level)}

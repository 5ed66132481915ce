"""Serializers of the ways to log an agent in, and of requests to log it in or out."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from executors_app.agentctl.agent_settings import ID_LIMIT
from executors_app.agentctl.auth_methods import AGENT, ENV_VAR, TERMINAL
from executors_app.agentctl.protocol import LoginAction, LoginState
from executors_app.models import Executor
from sessions_app.api.serializers.common import StrictCharField, StrictSerializer, TeamField, choice_field
from sessions_app.services.agent_login import RUNNING, WAITING, WITHDRAWN


class LoginMethodSerializer(serializers.Serializer[Any]):
    """A way to log in that the agent has published; its texts are the agent's own."""

    id = serializers.CharField()
    name = serializers.CharField()
    description = serializers.CharField()
    type = choice_field((AGENT, TERMINAL, ENV_VAR))
    command = serializers.CharField(help_text="For `terminal`: the profile's command with what the agent adds to it.")
    variables = serializers.ListField(child=serializers.CharField(), help_text="For `env_var`: what it needs.")
    link = serializers.CharField(help_text="For `env_var`: where to get the values; may be empty.")


class LoginStateSerializer(serializers.Serializer[Any]):
    """The last login or logout that was requested for a session."""

    action = choice_field(tuple(LoginAction))
    method = serializers.CharField(help_text="Empty for a logout.")
    name = serializers.CharField()
    state = choice_field((WAITING, RUNNING, *LoginState, WITHDRAWN))
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
    needs_version = serializers.CharField(help_text="The version that is needed if this one is outdated; else empty.")
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

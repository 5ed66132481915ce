"""Serializers of an agent's settings and of their changes."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from executors_app.agentctl.agent_settings import ID_LIMIT
from sessions_app.api.serializers.common import StrictCharField, StrictSerializer, choice_field
from sessions_app.models.agent_settings import APPLIED, REFUSED, WAITING


@extend_schema_field({"oneOf": [{"type": "string"}, {"type": "boolean"}]})
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
    """The last change of a setting; ``reason`` is the agent's, if it refused."""

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

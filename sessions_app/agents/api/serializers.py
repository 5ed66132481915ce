"""Serializers of agents: their types, profiles, settings, logins, and the MCP servers that they are given."""

from __future__ import annotations

from typing import Any, Final

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from executors_app.agents import CAPABILITIES
from executors_app.encryption import SecretUnreadable
from executors_app.mcp_servers import MAX_PAIRS, MAX_SERVERS, VALUE_LIMIT, check_mcp_servers
from executors_app.models import AgentProfile, Executor, check_env
from executors_app.plugins import missing_programs
from executors_app.wire.agent_settings import ID_LIMIT
from executors_app.wire.auth_methods import AGENT, ENV_VAR, TERMINAL
from executors_app.wire.protocol import LoginAction, LoginState
from sessions_app.agents.models import APPLIED, REFUSED, WAITING
from sessions_app.agents.services import agent_login
from sessions_app.agents.services.mcp_servers import REASONS, Level
from sessions_app.agents.services.profile_settings import STAFF_FIELDS, version_of
from sessions_app.api.serializers.common import (
    ArgvField,
    SizedDictField,
    SizedListField,
    StrictCharField,
    StrictModelSerializer,
    StrictSerializer,
    TeamField,
    choice_field,
)


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
        if is_id:
            return super().to_internal_value(int(data))
        return super().to_internal_value(data)


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


ENV_LIMIT: Final = 100_000


class AgentTypeSerializer(serializers.Serializer[Any]):
    """An agent type; ``missing`` lists programs that it needs and that are not installed on this machine.

    ``install`` installs them. ``login`` logs the agent in once; the environment variable ``key`` does so instead.
    """

    name = serializers.CharField()
    title = serializers.CharField()
    driver = serializers.CharField()
    supports_session_resume = serializers.BooleanField()
    supports_workspace_only = serializers.BooleanField()
    requires_new_session = serializers.SerializerMethodField()
    history_context_injection = serializers.BooleanField()
    wants_command = serializers.SerializerMethodField()
    missing = serializers.SerializerMethodField()
    installed = serializers.SerializerMethodField()
    install = serializers.CharField(help_text="The command that installs it; empty: nothing has to be installed.")
    login = serializers.CharField(help_text="The command that logs it in; empty: none is known.")
    key = serializers.CharField(help_text="The variable for its API key; empty: none is known.")
    stores = serializers.CharField(help_text="Where it keeps its conversations; empty: unknown.")
    offers = serializers.SerializerMethodField(
        help_text="What it offers for its conversations: `source` (`measured` or `published`), `version`, and by the "
        "name of each capability whether it is offered, or null if that is unknown. Null: nothing is known."
    )

    def get_requires_new_session(self, kind: Any) -> bool:
        """Return whether the type cannot resume at all."""
        return not kind.supports_session_resume

    def get_wants_command(self, kind: Any) -> bool:
        """Return whether a profile of the type has to name the command."""
        return not kind.argv

    def get_missing(self, kind: Any) -> list[str]:
        """Return the required programs that are not on PATH."""
        return missing_programs(kind)

    def get_installed(self, kind: Any) -> bool | None:
        """Return whether its programs are on PATH; null if the profile names them."""
        if kind.argv:
            return not missing_programs(kind)
        return None

    def get_offers(self, kind: Any) -> dict[str, Any] | None:
        """Return what it offers, and how that is known."""
        if kind.offers is None:
            return None
        offered = {name: kind.offers_capability(name) for name in CAPABILITIES}
        return {"source": kind.offers.source, "version": kind.offers.version, **offered}


class SecretHostsField(SizedDictField):
    """By variable, the hosts whose MCP servers of teams and repositories may be given its value."""

    child = SizedListField(child=StrictCharField(max_length=300), max_length=50)


class ProfileSerializer(StrictModelSerializer):
    """An agent profile; of its environment and its MCP servers only the names."""

    team = serializers.IntegerField(source="team_id", read_only=True, allow_null=True)
    command = ArgvField(read_only=True)
    args = ArgvField(read_only=True)
    additional_directories = ArgvField(read_only=True)
    gone_patterns = ArgvField(read_only=True)
    secret_hosts = SecretHostsField(read_only=True)
    env = serializers.SerializerMethodField()
    mcp_servers = serializers.SerializerMethodField()
    version = serializers.SerializerMethodField(help_text="Identifies the present settings.")

    # Written here, because the schema of a read-only field of a model leaves out the empty value.
    background_policy = serializers.ChoiceField(
        choices=AgentProfile.BackgroundPolicy.choices,
        allow_blank=True,
        help_text="Empty: as this installation is configured.",
    )

    class Meta:
        model = AgentProfile
        fields = (
            "id",
            "name",
            "team",
            "agent_type",
            "command",
            "args",
            "env",
            "model",
            "mode",
            "additional_directories",
            "gone_patterns",
            "mcp_servers",
            "secret_hosts",
            "permission_mode",
            "supports_session_resume",
            "history_context_injection",
            "memory_check",
            "background_policy",
            "disabled_at",
            "disabled_by",
            "disabled_by_staff",
            "version",
            "created_at",
        )
        read_only_fields = fields

    def get_version(self, profile: AgentProfile) -> str:
        """Return the version to change the settings with."""
        return version_of(profile)

    def get_env(self, profile: AgentProfile) -> list[str]:
        """Return the names of its variables; none if they cannot be decrypted."""
        try:
            return sorted(profile.env)
        except SecretUnreadable:
            return []

    def get_mcp_servers(self, profile: AgentProfile) -> list[str]:
        """Return the names of its servers; none if they cannot be decrypted."""
        try:
            return [str(server.get("name", "")) for server in profile.mcp_servers]
        except SecretUnreadable:
            return []


class _ProfileValuesSerializer(StrictModelSerializer):
    """The values of an agent profile that are written."""

    command = ArgvField(required=False)
    args = ArgvField(required=False)
    additional_directories = ArgvField(required=False)
    gone_patterns = ArgvField(required=False)
    env = SizedDictField(
        required=False,
        max_bytes=ENV_LIMIT * 10,
        child=StrictCharField(allow_blank=True, trim_whitespace=False, max_length=ENV_LIMIT),
    )
    mcp_servers = SizedListField(required=False, child=SizedDictField(), max_length=MAX_SERVERS)
    secret_hosts = SecretHostsField(required=False)

    class Meta:
        model = AgentProfile
        fields: tuple[str, ...] = STAFF_FIELDS

    def validate_env(self, env: dict[str, str]) -> dict[str, str]:
        """Check that the names are valid names of environment variables."""
        check_env(env)
        return env

    def validate_mcp_servers(self, servers: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Check the servers by their schema."""
        check_mcp_servers(servers)
        return servers


class NewProfileSerializer(_ProfileValuesSerializer):
    """The values of a new agent profile; without a team it is shared by all teams."""

    team = TeamField(required=False, allow_null=True)

    class Meta(_ProfileValuesSerializer.Meta):
        fields = ("team", "agent_type", *STAFF_FIELDS)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Validate with the model, which knows the agent types."""
        AgentProfile(**attrs).clean()
        return attrs


class ProfileChangeSerializer(StrictSerializer, _ProfileValuesSerializer):
    """Changes of a profile's settings; with ``version``, they are saved only over that version."""

    disabled = serializers.BooleanField(required=False, help_text="Disabled: no new session can use it.")
    version = StrictCharField(required=False, max_length=64)

    class Meta(_ProfileValuesSerializer.Meta):
        fields = (*STAFF_FIELDS, "disabled", "version")
        extra_kwargs = {"name": {"required": False}}

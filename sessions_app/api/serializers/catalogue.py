"""Serializers of agent types, profiles, executors, executions and sweeps. None of them exposes a secret."""

from __future__ import annotations

from typing import Any, Final

from rest_framework import serializers

from executors_app.agents import CAPABILITIES
from executors_app.encryption import SecretUnreadable
from executors_app.mcp_servers import MAX_SERVERS, check_mcp_servers
from executors_app.models import AgentProfile, Executor, ExecutorRunning, check_env
from executors_app.plugins import missing_programs
from sessions_app.accounts.authorization import is_isolated
from sessions_app.api.serializers.common import (
    EXECUTOR_STATUSES,
    ArgvField,
    SizedDictField,
    SizedListField,
    StrictCharField,
    StrictModelSerializer,
    TeamField,
    choice_field,
)
from sessions_app.models import RecoverySweep, SweepOutcome, SweepRequest, TaskSession

ENV_LIMIT: Final = 100_000


class VersionSerializer(serializers.Serializer[Any]):
    """The version of this deployment."""

    version = serializers.CharField(help_text="The version of Kandev that answers.")


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
        return not missing_programs(kind) if kind.argv else None

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
            "created_at",
        )
        read_only_fields = fields

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


class NewProfileSerializer(StrictModelSerializer):
    """The values of a new agent profile; without a team it is shared by all teams."""

    team = TeamField(required=False, allow_null=True)
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
        fields = tuple(name for name in ProfileSerializer.Meta.fields if name not in {"id", "created_at"})

    def validate_env(self, env: dict[str, str]) -> dict[str, str]:
        """Check that the names are valid names of environment variables."""
        check_env(env)
        return env

    def validate_mcp_servers(self, servers: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Check the servers by their schema."""
        check_mcp_servers(servers)
        return servers

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Validate with the model, which knows the agent types."""
        AgentProfile(**attrs).clean()
        return attrs


class ExecutorSerializer(StrictModelSerializer):
    """An executor, where agents run; only staff see its configuration."""

    trusted_agents_only = serializers.SerializerMethodField()
    config = serializers.SerializerMethodField()

    class Meta:
        model = Executor
        fields = ("id", "name", "runtime", "config", "max_live", "trusted_agents_only", "created_at")
        read_only_fields = fields

    def get_trusted_agents_only(self, executor: Executor) -> bool:
        """Return whether agents can affect the control plane's machine; true for an unknown runtime, to be safe."""
        return not is_isolated(executor)

    def get_config(self, executor: Executor) -> dict[str, Any] | None:
        """Return the configuration; null for users who are not staff."""
        return dict(executor.config) if self.context["request"].user.is_staff else None


class NewExecutorSerializer(StrictModelSerializer):
    """The values of a new executor."""

    config = SizedDictField(required=False)

    class Meta:
        model = Executor
        fields = ("name", "runtime", "config", "max_live")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Validate with the model, which knows the runtimes and their configuration."""
        Executor(**attrs).clean()
        return attrs


class ProbeAnswerSerializer(serializers.Serializer[Any]):
    """The result of probing an executor."""

    ok = serializers.BooleanField()
    runtime = serializers.CharField()
    isolated = serializers.BooleanField()
    observed = serializers.DictField(child=serializers.IntegerField())
    duration_ms = serializers.IntegerField()


class ExecutionSerializer(StrictModelSerializer):
    """An execution, without its tokens and the runtime's internal state."""

    id = serializers.UUIDField(read_only=True)
    has_resume_token = serializers.SerializerMethodField()

    class Meta:
        model = ExecutorRunning
        fields = (
            "id",
            "session",
            "task",
            "executor",
            "runtime",
            "host_id",
            "status",
            "status_reason",
            "pid",
            "container_id",
            "supports_session_resume",
            "supports_workspace_only",
            "has_resume_token",
            "workspace_path",
            "worktree_id",
            "worktree_path",
            "worktree_branch",
            "last_seen_at",
            "error_code",
            "error_message",
            "owner",
            "lease_expires_at",
            "generation",
            "journal_epoch",
            "journal_seq",
            "created_at",
            "updated_at",
        )
        read_only_fields = fields

    def get_has_resume_token(self, execution: ExecutorRunning) -> bool:
        """Return whether a resume token is stored; the token itself is never shown."""
        try:
            return bool(execution.resume_token)
        except SecretUnreadable:
            return True


class ExecutionQuerySerializer(serializers.Serializer[Any]):
    """Filter of executions by status; without one, those that run or should run."""

    status = choice_field(EXECUTOR_STATUSES, required=False)


class OutcomeSerializer(StrictModelSerializer):
    """What a sweep decided for one session."""

    session_id = serializers.UUIDField(read_only=True)
    task_id = serializers.UUIDField(source="session.task_id", read_only=True)

    class Meta:
        model = SweepOutcome
        fields = (
            "session_id",
            "task_id",
            "runtime",
            "observed",
            "rule",
            "executor_status",
            "session_state",
            "agent_action",
            "strategy",
            "receipt_kind",
            "reason",
            "error_message",
            "duration_ms",
        )
        read_only_fields = fields


class SweepSerializer(StrictModelSerializer):
    """A sweep; its counts cover the whole deployment. Dry runs are not stored, so ``dry_run`` is always false."""

    sweep_id = serializers.UUIDField(source="id", read_only=True)
    dry_run = serializers.BooleanField(default=False, read_only=True)
    outcomes = serializers.DictField(child=serializers.IntegerField(), read_only=True)

    class Meta:
        model = RecoverySweep
        fields = (
            "id",
            "sweep_id",
            "boot_id",
            "trigger",
            "dry_run",
            "started_at",
            "duration_ms",
            "examined",
            "outcomes",
        )
        read_only_fields = fields


class SweepDetailSerializer(SweepSerializer):
    """A sweep, with its decisions for the sessions of the user's teams."""

    sessions = serializers.SerializerMethodField()

    class Meta:
        model = RecoverySweep
        fields = (*SweepSerializer.Meta.fields, "sessions")
        read_only_fields = fields

    def get_sessions(self, sweep: RecoverySweep) -> list[dict[str, Any]]:
        """Return the rows without the sessions of other teams."""
        rows = SweepOutcome.objects.visible_to(self.context["request"].user).filter(sweep=sweep)
        shown: list[dict[str, Any]] = OutcomeSerializer(rows.select_related("session"), many=True).data  # type: ignore[assignment]
        return shown


class NewSweepSerializer(serializers.Serializer[Any]):
    """Options of a requested sweep."""

    dry_run = serializers.BooleanField(default=False)


class SweepRequestSerializer(StrictModelSerializer):
    """A requested sweep; once it is done, ``report`` is the document that ``recover_sessions --json`` prints."""

    sweep_id = serializers.UUIDField(read_only=True, allow_null=True)
    report = serializers.SerializerMethodField()

    class Meta:
        model = SweepRequest
        fields = ("id", "dry_run", "by", "created_at", "done_at", "sweep_id", "report")
        read_only_fields = fields

    def get_report(self, asked: SweepRequest) -> dict[str, Any] | None:
        """Return the rows without the sessions of other teams."""
        if asked.report is None:
            return None
        rows = asked.report["sessions"]
        sessions = TaskSession.objects.visible_to(self.context["request"].user)
        seen = {
            str(one) for one in sessions.filter(id__in=[row["session_id"] for row in rows]).values_list("id", flat=True)
        }
        return {**asked.report, "sessions": [row for row in rows if row["session_id"] in seen]}

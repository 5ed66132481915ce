"""Serializers of repositories, executors and executions. None of them exposes a secret."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from executors_app.encryption import SecretUnreadable
from executors_app.models import Executor, ExecutorRunning, check_labels
from sessions_app.accounts.authorization import is_isolated
from sessions_app.api.serializers.common import (
    EXECUTOR_STATUSES,
    SizedDictField,
    StrictCharField,
    StrictModelSerializer,
    StrictSerializer,
    TeamField,
    choice_field,
)
from sessions_app.board.api.serializers import BranchField
from sessions_app.catalogue.services.executor_settings import version_of
from sessions_app.catalogue.services.repository_settings import repository_version
from sessions_app.models import Repository
from sessions_app.placement.services.executor_hosts import find_host


class ExecutorSerializer(StrictModelSerializer):
    """An executor, where agents run; only staff see its configuration."""

    trusted_agents_only = serializers.SerializerMethodField()
    config = serializers.SerializerMethodField()
    host = serializers.SerializerMethodField(help_text="The only host that starts sessions there. For staff only.")
    version = serializers.SerializerMethodField(help_text="Identifies the present settings.")

    class Meta:
        model = Executor
        fields = (
            *("id", "name", "runtime", "config", "max_live", "host", "pool", "labels", "trusted_agents_only"),
            *("is_default", "disabled_at", "disabled_by", "version", "created_at"),
        )
        read_only_fields = fields

    def get_version(self, executor: Executor) -> str:
        """Return the version to change the settings with."""
        return version_of(executor)

    def get_trusted_agents_only(self, executor: Executor) -> bool:
        """Return whether agents can affect the control plane's machine; true for an unknown runtime, to be safe."""
        return not is_isolated(executor)

    def get_config(self, executor: Executor) -> dict[str, Any] | None:
        """Return the configuration; null for users who are not staff."""
        if self.context["request"].user.is_staff:
            return dict(executor.config)
        return None

    def get_host(self, executor: Executor) -> str | None:
        """Return the name of its host; null if it has none, and for users who are not staff."""
        if executor.host is not None and self.context["request"].user.is_staff:
            return executor.host.name
        return None


class NewExecutorSerializer(StrictModelSerializer):
    """The values of a new executor."""

    config = SizedDictField(required=False)
    host = StrictCharField(
        required=False, max_length=100, help_text="Name of the only host that starts sessions there."
    )

    class Meta:
        model = Executor
        fields = ("name", "runtime", "config", "max_live", "host", "pool", "labels")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Validate with the model, which knows the runtimes and their configuration."""
        if "host" in attrs:
            attrs["host"] = find_host(attrs["host"], attrs.get("runtime", ""))
        Executor(**attrs).clean()
        return attrs


class ExecutorChangeSerializer(StrictSerializer, StrictModelSerializer):
    """Changes of an executor's settings; with ``version``, they are saved only over that version."""

    config = SizedDictField(required=False)
    host = StrictCharField(
        required=False,
        allow_blank=True,
        max_length=100,
        help_text="Name of the only host that starts sessions there. Empty: any that has the repository.",
    )
    is_default = serializers.BooleanField(required=False, help_text="Only true: another one takes over.")
    disabled = serializers.BooleanField(required=False, help_text="Disabled: no new session can use it.")
    version = StrictCharField(required=False, max_length=64)

    class Meta:
        model = Executor
        fields = ("name", "config", "max_live", "host", "pool", "labels", "is_default", "disabled", "version")
        # A name that is taken is found by the service, under its lock.
        extra_kwargs = {"name": {"required": False, "validators": []}}

    def validate_is_default(self, value: bool) -> bool:
        """Raise ValidationError for false: there is always a default."""
        if not value:
            raise serializers.ValidationError("Make another executor the default instead.")
        return value


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


class RepositorySerializer(StrictModelSerializer):
    """A repository that staff opened to a team."""

    team = serializers.IntegerField(source="team_id", read_only=True)
    version = serializers.SerializerMethodField(help_text="Identifies the present settings.")

    class Meta:
        model = Repository
        fields = (
            "id",
            "name",
            "team",
            "path",
            "default_branch",
            "default_base",
            "executor_labels",
            "is_default",
            "version",
            "created_at",
        )
        read_only_fields = fields

    def get_version(self, repository: Repository) -> str:
        """Return the version to change the settings with."""
        return repository_version(repository)


class NewRepositorySerializer(serializers.Serializer[Any]):
    """The values of a repository that staff opens to a team."""

    name = StrictCharField(max_length=200)
    team = TeamField()
    path = StrictCharField(max_length=4096, trim_whitespace=False)
    default_branch = BranchField(required=False)


class RepositoryChangeSerializer(StrictSerializer):
    """Changes of a repository's settings; with ``version``, they are saved only over that version."""

    name = StrictCharField(required=False, max_length=200)
    default_branch = BranchField(required=False, help_text="Empty: unknown.")
    default_base = BranchField(required=False, help_text="What new tasks start from. Empty: what is checked out.")
    executor_labels = StrictCharField(
        required=False,
        allow_blank=True,
        max_length=500,
        validators=[check_labels],
        help_text="What an executor must offer for sessions that a pool places, separated by commas.",
    )
    is_default = serializers.BooleanField(required=False, help_text="A team has at most one default repository.")
    version = StrictCharField(required=False, max_length=64)

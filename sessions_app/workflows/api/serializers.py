"""Workflows, their runs, and what is wrong with a text."""

from __future__ import annotations

from typing import Any, Final

from rest_framework import serializers

from executors_app.models import AgentProfile, Executor
from sessions_app.accounts.authorization import require_write, writable_teams
from sessions_app.api.serializers.common import (
    IdempotencyKeyField,
    StrictCharField,
    StrictModelSerializer,
    StrictSerializer,
    TeamField,
    choice_field,
)
from sessions_app.api.serializers.tasks import DESCRIPTION_LIMIT, validate_repository
from sessions_app.services.catalogue import visible_profiles
from sessions_app.workflows.language.diagnostics import Severity
from sessions_app.workflows.language.limits import MAX_BYTES
from sessions_app.workflows.models import NODE_STATES, RUN_STATES, TRIGGERS, Workflow, WorkflowRun

MAX_FILES: Final = 200
TRIGGERS_HELP: Final = (
    "Whether cron and idle triggers start runs, with the rights of whoever enables them. Paused triggers stay paused: "
    "POST workflows/{id}/triggers/confirm/ enables them."
)


class FilesField(serializers.DictField):
    """Files that a workflow names: texts by path relative to the project, 200 at most, 4 MiB together."""

    child = StrictCharField(allow_blank=True, trim_whitespace=False, max_length=MAX_BYTES)

    def to_internal_value(self, data: Any) -> dict[str, str]:
        """The files, not too many of them."""
        files: dict[str, str] = super().to_internal_value(data)
        if len(files) > MAX_FILES or sum(map(len, files.values())) > 4 * MAX_BYTES:
            raise serializers.ValidationError([f"At most {MAX_FILES} files of 4 MiB together are kept."])
        if any(len(path) > 1024 for path in files):
            raise serializers.ValidationError(["A path has 1024 characters at most."])
        return files


class FindingSerializer(serializers.Serializer[Any]):
    """What is wrong with a text, where, and what mends it. ``line`` counts from 1, 0 is unknown."""

    severity = choice_field(Severity)
    code = serializers.CharField()
    message = serializers.CharField()
    fix = serializers.CharField()
    file = serializers.CharField()
    line = serializers.IntegerField()
    node = serializers.CharField()


class CheckQuerySerializer(serializers.Serializer[Any]):
    """A text, and the files that it names."""

    text = StrictCharField(allow_blank=True, trim_whitespace=False, max_length=MAX_BYTES)
    files = FilesField(default=dict)


class CheckAnswerSerializer(serializers.Serializer[Any]):
    """Whether it can be run, all findings, and its drawing; ``svg`` is empty where it cannot be run."""

    valid = serializers.BooleanField()
    problems = FindingSerializer(many=True)
    svg = serializers.CharField()


class WorkflowSerializer(StrictModelSerializer):
    """A workflow in a list, without its text."""

    team = serializers.IntegerField(source="team_id", read_only=True)
    team_name = serializers.CharField(source="team.name", read_only=True)
    last_run = serializers.UUIDField(source="last_run_id", read_only=True, allow_null=True, default=None)
    last_run_state = choice_field(RUN_STATES, read_only=True, allow_null=True, default=None)

    class Meta:
        model = Workflow
        fields: tuple[str, ...] = (
            *("id", "team", "team_name", "name", "description", "revision", "is_valid", "repository"),
            *("agent_profile", "executor", "triggers_enabled", "next_run_at", "trigger_error"),
            *("triggers_enabled_by", "triggers_confirmed_at", "triggers_paused"),
            *("last_run", "last_run_state", "created_by", "created_at", "updated_at", "archived_at"),
        )
        read_only_fields = fields


class WorkflowDetailSerializer(WorkflowSerializer):
    """A workflow with its text, and what is wrong with that."""

    problems = serializers.SerializerMethodField()
    files = FilesField(read_only=True)

    class Meta:
        model = Workflow
        fields = (*WorkflowSerializer.Meta.fields, "text", "files", "problems")
        read_only_fields = fields

    def get_problems(self, row: Workflow) -> FindingSerializer(many=True):  # type: ignore[valid-type]
        """Every finding in the text as it is kept."""
        return FindingSerializer(self.context["problems"], many=True).data


class _WorkplaceSerializer(serializers.Serializer[Any]):
    """Where runs work and who works; null: none, so nodes that need one fail."""

    repository = serializers.UUIDField(required=False, allow_null=True)
    agent_profile = serializers.PrimaryKeyRelatedField(
        queryset=AgentProfile.objects.all(), pk_field=serializers.UUIDField(), required=False, allow_null=True
    )
    executor = serializers.PrimaryKeyRelatedField(
        queryset=Executor.objects.all(), pk_field=serializers.UUIDField(), required=False, allow_null=True
    )

    def validate_agent_profile(self, value: AgentProfile | None) -> AgentProfile | None:
        """A profile of another team's is not there."""
        if value is not None and not visible_profiles(self.context["request"].user).filter(id=value.id).exists():
            raise serializers.ValidationError(["There is no such agent profile."])
        return value

    def at_team(self, attrs: dict[str, Any], team: Any) -> dict[str, Any]:
        """The same with the team's repository; ValidationError for what is another team's."""
        if "repository" in attrs:
            attrs["repository"] = validate_repository(team, attrs["repository"])
        profile = attrs.get("agent_profile")
        if profile is not None and profile.team_id not in (None, team.pk):
            raise serializers.ValidationError({"agent_profile": ["This profile is another team's."]})
        return attrs


class WorkflowChangeSerializer(StrictSerializer, _WorkplaceSerializer):
    """What can be changed; with ``revision``, the one that was read, a change by somebody else since is a conflict."""

    name = StrictCharField(required=False, max_length=200)
    description = StrictCharField(required=False, allow_blank=True, trim_whitespace=False, max_length=DESCRIPTION_LIMIT)
    text = StrictCharField(required=False, allow_blank=True, trim_whitespace=False, max_length=MAX_BYTES)
    files = FilesField(required=False)
    triggers_enabled = serializers.BooleanField(required=False, help_text=TRIGGERS_HELP)
    revision = serializers.IntegerField(required=False, min_value=1)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Find the repository among the team's."""
        return self.at_team(attrs, self.context["workflow"].team)


class NewWorkflowSerializer(_WorkplaceSerializer):
    """What a workflow is made of; without a name its text says one. A text that cannot be run yet is kept, too."""

    team = TeamField(required=False)
    name = StrictCharField(required=False, max_length=200)
    description = StrictCharField(required=False, allow_blank=True, trim_whitespace=False, max_length=DESCRIPTION_LIMIT)
    text = StrictCharField(allow_blank=True, trim_whitespace=False, max_length=MAX_BYTES)
    files = FilesField(default=dict)
    triggers_enabled = serializers.BooleanField(default=False, help_text=TRIGGERS_HELP)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Find the team where none is named, and the repository among the team's; ReadOnly for its viewers."""
        user = self.context["request"].user
        if "team" not in attrs:
            teams = list(writable_teams(user)[:2])
            if len(teams) != 1:
                raise serializers.ValidationError({"team": ["Say which team the workflow is for."]})
            attrs["team"] = teams[0]
        require_write(user, attrs["team"])
        return self.at_team(attrs, attrs["team"])


class TriggerChangeSerializer(serializers.Serializer[Any]):
    """What has become of one part since it was confirmed: a line begins with ``+``, ``-`` or a blank."""

    part = serializers.CharField(
        help_text="text, file:<path>, repository, executor, agent:<runner and model>, triggers"
    )
    name = serializers.CharField(help_text="What people call it.")
    text = serializers.CharField(help_text="The difference, line by line.")
    is_cut = serializers.BooleanField(help_text="There is more than is shown: read the text itself.")


class TriggersDocumentSerializer(serializers.Serializer[Any]):
    """Whether a workflow's triggers start it, with whose rights, and what has changed since that was confirmed."""

    enabled = serializers.BooleanField()
    paused = serializers.CharField(help_text="Why they wait for a confirmation; empty: they do not.")
    enabled_by = serializers.IntegerField(allow_null=True, help_text="Whose rights scheduled runs have.")
    enabled_by_name = serializers.CharField()
    confirmed_at = serializers.DateTimeField(allow_null=True)
    next_run_at = serializers.DateTimeField(allow_null=True)
    fingerprint = serializers.CharField(help_text="Names this state; who confirms it sends it back.")
    changes = TriggerChangeSerializer(many=True)
    may_confirm = serializers.BooleanField(help_text="Whether you may.")
    refusal = serializers.CharField(help_text="Why you may not; empty: you may.")
    who_may_confirm = serializers.CharField()


class ConfirmTriggersSerializer(serializers.Serializer[Any]):
    """The state that was seen."""

    fingerprint = StrictCharField(max_length=64)


class WorkflowQuerySerializer(serializers.Serializer[Any]):
    """Which workflows are listed; those put away only with ``archived=true``."""

    archived = serializers.BooleanField(default=False)


class NewWorkflowRunSerializer(serializers.Serializer[Any]):
    """What a run is started with: ``text`` and ``params`` are what triggers give, ``inputs`` further ones by name.

    Those that the workflow declares are of its types and have its defaults.
    """

    text = StrictCharField(default="", allow_blank=True, trim_whitespace=False, max_length=MAX_BYTES)
    params = serializers.DictField(default=dict)
    inputs = serializers.DictField(default=dict)
    revision = serializers.IntegerField(
        required=False,
        min_value=1,
        help_text="The one that was read: a conflict where somebody has saved another since.",
    )
    idempotency_key = IdempotencyKeyField()


class RunQuerySerializer(serializers.Serializer[Any]):
    """Which runs are listed."""

    workflow = serializers.UUIDField(required=False)
    task = serializers.UUIDField(required=False)
    state = choice_field(RUN_STATES, required=False)


class WorkflowRunSerializer(StrictModelSerializer):
    """A run in a list; alone it says more."""

    task_id = serializers.UUIDField(read_only=True)
    workflow_id = serializers.UUIDField(read_only=True, allow_null=True)

    class Meta:
        model = WorkflowRun
        fields = (
            *("id", "name", "state", "error", "trigger", "task_id", "workflow_id", "revision", "started_by"),
            *("created_at", "started_at", "ended_at"),
        )
        read_only_fields = fields


class NodeRunDocumentSerializer(serializers.Serializer[Any]):
    """One time that a node ran, or an iteration of a loop. ``waiting_for``: ``user`` where a prompt is held."""

    path = serializers.CharField()
    node = serializers.CharField()
    kind = serializers.CharField()
    state = choice_field(NODE_STATES)
    iteration = serializers.IntegerField()
    attempt = serializers.IntegerField()
    waiting_for = serializers.CharField()
    session_id = serializers.UUIDField(allow_null=True)
    message_id = serializers.CharField()
    inputs = serializers.DictField()
    outputs = serializers.DictField()
    error = serializers.CharField()
    started_at = serializers.DateTimeField(allow_null=True)
    ended_at = serializers.DateTimeField(allow_null=True)
    deadline_at = serializers.DateTimeField(allow_null=True)
    output_tail = serializers.CharField()


class RunDocumentSerializer(serializers.Serializer[Any]):
    """A run with every time that a node ran, in the order of their beginnings."""

    id = serializers.UUIDField()
    name = serializers.CharField()
    state = choice_field(RUN_STATES)
    error = serializers.CharField()
    trigger = choice_field(TRIGGERS)
    version = serializers.IntegerField(help_text="Grows with each change.")
    cancel_requested = serializers.BooleanField()
    inputs = serializers.DictField()
    outputs = serializers.DictField()
    created_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(allow_null=True)
    ended_at = serializers.DateTimeField(allow_null=True)
    task_id = serializers.UUIDField()
    workspace_session_id = serializers.UUIDField(allow_null=True)
    workflow_id = serializers.UUIDField(allow_null=True)
    nodes = NodeRunDocumentSerializer(many=True)


class ResumeRunSerializer(serializers.Serializer[Any]):
    """From where a run goes on: the path of a node's record; without one from what failed."""

    node = StrictCharField(default="", allow_blank=True, max_length=1024)

"""Serializers of workflows, their runs, their triggers, and the diagnostics of a text."""

from __future__ import annotations

from typing import Any, Final

from django.contrib.auth.models import Group
from rest_framework import serializers

from executors_app.models import AgentProfile, Executor
from sessions_app.accounts.authorization import require_write, writable_teams
from sessions_app.agents.services.profiles import visible_profiles
from sessions_app.api.base_views import MAX_BODY
from sessions_app.api.serializers.common import (
    IdempotencyKeyField,
    SizedDictField,
    StrictCharField,
    StrictModelSerializer,
    StrictSerializer,
    TeamField,
    choice_field,
)
from sessions_app.board.api.serializers import validate_repository
from sessions_app.board.services.tasks import DESCRIPTION_LIMIT
from sessions_app.workflows.language.diagnostics import Severity
from sessions_app.workflows.language.limits import MAX_BYTES, MAX_FILLED
from sessions_app.workflows.models import NODE_STATES, RUN_STATES, TRIGGERS, Workflow, WorkflowRun
from sessions_app.workflows.services.trigger_errors import describe_trigger_error

MAX_FILES: Final = 200
TRIGGERS_HELP: Final = (
    "Whether cron and idle triggers start runs, with the rights of the user who enables them. Paused triggers stay "
    "paused: POST workflows/{id}/triggers/confirm/ enables them."
)


class FilesField(SizedDictField):
    """Files that a workflow names: texts by path relative to the project, at most 200, and 4 MiB in total."""

    def __init__(self, **kwargs: Any):
        super().__init__(max_names=MAX_FILES, max_bytes=MAX_BODY, **kwargs)

    child = StrictCharField(allow_blank=True, trim_whitespace=False, max_length=MAX_BYTES)

    def to_internal_value(self, data: Any) -> dict[str, str]:
        """Return the files; refuse too many, too large ones, and long paths."""
        files: dict[str, str] = super().to_internal_value(data)
        if len(files) > MAX_FILES or sum(map(len, files.values())) > 4 * MAX_BYTES:
            raise serializers.ValidationError([f"A workflow can have at most {MAX_FILES} files of 4 MiB in total."])
        if any(len(path) > 1024 for path in files):
            raise serializers.ValidationError(["A path can have at most 1024 characters."])
        return files


class FindingSerializer(serializers.Serializer[Any]):
    """A problem in a text: what is wrong, where, and how to fix it. ``line`` counts from 1; 0 means unknown."""

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
    """Whether the text can be run, all problems, and its drawing; ``svg`` is empty if it cannot be run or drawn."""

    valid = serializers.BooleanField()
    problems = FindingSerializer(many=True)
    svg = serializers.CharField()


class WorkflowSerializer(StrictModelSerializer):
    """A workflow in a list, without its text."""

    team = serializers.IntegerField(source="team_id", read_only=True)
    team_name = serializers.CharField(source="team.name", read_only=True)
    last_run = serializers.UUIDField(source="last_run_id", read_only=True, allow_null=True, default=None)
    last_run_state = choice_field(RUN_STATES, read_only=True, allow_null=True, default=None)
    trigger_error = serializers.SerializerMethodField()

    class Meta:
        model = Workflow
        fields: tuple[str, ...] = (
            *("id", "team", "team_name", "name", "description", "revision", "is_valid", "repository"),
            *("agent_profile", "executor", "triggers_enabled", "next_run_at", "trigger_error"),
            *("missed_count", "missed_from", "missed_until", "missed_run", "missed_outcome"),
            *("triggers_enabled_by", "triggers_confirmed_at", "triggers_paused"),
            *("last_run", "last_run_state", "created_by", "created_at", "updated_at", "archived_at"),
        )
        read_only_fields = fields

    def get_trigger_error(self, row: Workflow) -> str:
        """Say what keeps its triggers from starting it: a missing worker, and what prevented the last start."""
        return describe_trigger_error(row, self.context["missing_worker"])


class WorkflowDetailSerializer(WorkflowSerializer):
    """A workflow with its text, and the problems of the text."""

    problems = serializers.SerializerMethodField()
    files = FilesField(read_only=True)

    class Meta:
        model = Workflow
        fields = (*WorkflowSerializer.Meta.fields, "text", "files", "problems")
        read_only_fields = fields

    def get_problems(self, row: Workflow) -> FindingSerializer(many=True):  # type: ignore[valid-type]
        """Return every problem of the saved text."""
        return FindingSerializer(self.context["problems"], many=True).data


class _WorkplaceSerializer(serializers.Serializer[Any]):
    """The repository, executor and agent profile of runs; null means none, so nodes that need one fail."""

    repository = serializers.UUIDField(required=False, allow_null=True)
    agent_profile = serializers.PrimaryKeyRelatedField(
        queryset=AgentProfile.objects.all(), pk_field=serializers.UUIDField(), required=False, allow_null=True
    )
    executor = serializers.PrimaryKeyRelatedField(
        queryset=Executor.objects.all(), pk_field=serializers.UUIDField(), required=False, allow_null=True
    )

    def validate_agent_profile(self, value: AgentProfile | None) -> AgentProfile | None:
        """Refuse a profile that the user cannot see, as if it did not exist."""
        if value is not None and not visible_profiles(self.context["request"].user).filter(id=value.id).exists():
            raise serializers.ValidationError(["This agent profile does not exist."])
        return value

    def at_team(self, attrs: dict[str, Any], team: Group) -> dict[str, Any]:
        """Return the values with the team's repository. Raises ValidationError for what belongs to another team."""
        if "repository" in attrs:
            attrs["repository"] = validate_repository(team, attrs["repository"])
        profile = attrs.get("agent_profile")
        if profile is not None and profile.team_id not in (None, team.pk):
            raise serializers.ValidationError({"agent_profile": ["This profile belongs to another team."]})
        return attrs


class WorkflowChangeSerializer(StrictSerializer, _WorkplaceSerializer):
    """Changes of a workflow. With ``revision``, the one that was read, a newer revision is a conflict."""

    name = StrictCharField(required=False, max_length=200)
    description = StrictCharField(required=False, allow_blank=True, trim_whitespace=False, max_length=DESCRIPTION_LIMIT)
    text = StrictCharField(required=False, allow_blank=True, trim_whitespace=False, max_length=MAX_BYTES)
    files = FilesField(required=False)
    triggers_enabled = serializers.BooleanField(required=False, help_text=TRIGGERS_HELP)
    revision = serializers.IntegerField(required=False, min_value=1)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Look up the repository among those of the team."""
        return self.at_team(attrs, self.context["workflow"].team)


class NewWorkflowSerializer(_WorkplaceSerializer):
    """A new workflow. Its name defaults to the one in its text. A text with errors is saved, too."""

    team = TeamField(required=False)
    name = StrictCharField(required=False, max_length=200)
    description = StrictCharField(required=False, allow_blank=True, trim_whitespace=False, max_length=DESCRIPTION_LIMIT)
    text = StrictCharField(allow_blank=True, trim_whitespace=False, max_length=MAX_BYTES)
    files = FilesField(default=dict)
    triggers_enabled = serializers.BooleanField(default=False, help_text=TRIGGERS_HELP)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Look up the team if none is named, and the repository of the team. Raises ReadOnly for viewers."""
        user = self.context["request"].user
        if "team" not in attrs:
            teams = list(writable_teams(user)[:2])
            if len(teams) != 1:
                raise serializers.ValidationError({"team": ["Choose the team of the workflow."]})
            attrs["team"] = teams[0]
        require_write(user, attrs["team"])
        return self.at_team(attrs, attrs["team"])


class TriggerChangeSerializer(serializers.Serializer[Any]):
    """The difference of one part since it was confirmed: each line begins with ``+``, ``-`` or a blank."""

    part = serializers.CharField(
        help_text="text, file:<path>, repository, executor, agent:<runner and model>, triggers"
    )
    name = serializers.CharField(help_text="Name of the part for users.")
    text = serializers.CharField(help_text="The difference, line by line.")
    is_cut = serializers.BooleanField(help_text="The difference is longer than shown: read the text itself.")


class TriggersDocumentSerializer(serializers.Serializer[Any]):
    """Whether a workflow starts on a schedule, with whose rights, and what has changed since that was confirmed."""

    enabled = serializers.BooleanField()
    paused = serializers.CharField(help_text="Why the triggers wait for a confirmation; empty if they do not.")
    enabled_by = serializers.IntegerField(allow_null=True, help_text="Whose rights scheduled runs have.")
    enabled_by_name = serializers.CharField()
    confirmed_at = serializers.DateTimeField(allow_null=True)
    next_run_at = serializers.DateTimeField(allow_null=True)
    fingerprint = serializers.CharField(help_text="Identifies this state; send it back to confirm the state.")
    changes = TriggerChangeSerializer(many=True)
    may_confirm = serializers.BooleanField(help_text="Whether you may confirm the triggers.")
    refusal = serializers.CharField(help_text="Why you may not confirm them; empty if you may.")
    who_may_confirm = serializers.CharField()


class ConfirmTriggersSerializer(serializers.Serializer[Any]):
    """The state that you have read."""

    fingerprint = StrictCharField(max_length=64)


class WorkflowQuerySerializer(serializers.Serializer[Any]):
    """Which workflows are listed; archived ones only with ``archived=true``."""

    archived = serializers.BooleanField(default=False)


class NewWorkflowRunSerializer(serializers.Serializer[Any]):
    """The inputs of a new run: ``text`` and ``params`` for triggers, and further ``inputs`` by name.

    Inputs that the workflow declares are converted to their types, and have their defaults.
    """

    text = StrictCharField(default="", allow_blank=True, trim_whitespace=False, max_length=MAX_BYTES)
    params = SizedDictField(default=dict, max_bytes=MAX_FILLED)
    inputs = SizedDictField(default=dict, max_bytes=MAX_FILLED)
    revision = serializers.IntegerField(
        required=False,
        min_value=1,
        help_text="The revision that you have read: a newer one is a conflict.",
    )
    idempotency_key = IdempotencyKeyField()


class RunQuerySerializer(serializers.Serializer[Any]):
    """Which runs are listed."""

    workflow = serializers.UUIDField(required=False)
    task = serializers.UUIDField(required=False)
    state = choice_field(RUN_STATES, required=False)


class WorkflowRunSerializer(StrictModelSerializer):
    """A run in a list."""

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
    """One run of a node, or an iteration of a loop. ``waiting_for`` is ``user`` if a prompt is held."""

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
    """A run with all runs of its steps, in the order in which they began."""

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
    """Where a run resumes: the path of a step's run; by default, the steps that failed."""

    node = StrictCharField(default="", allow_blank=True, max_length=1024)

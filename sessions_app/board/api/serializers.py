"""Serializers of tasks."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import Group
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from sessions_app.accounts.authorization import require_write, writable_teams
from sessions_app.api.serializers.common import (
    WORK_STATES,
    IdempotencyKeyField,
    SizedListField,
    StrictCharField,
    StrictModelSerializer,
    StrictSerializer,
    TeamField,
    choice_field,
)
from sessions_app.board.services.bulk import ACTIONS, MAX_TASKS
from sessions_app.board.services.tasks import BRANCH_PATTERN, DESCRIPTION_LIMIT, text_version
from sessions_app.finish.api.serializers import UnfinishedTaskSerializer
from sessions_app.models import Repository, Task
from sessions_app.planning.rules.plans import LABEL_LENGTH, MAX_LABELS, PRIORITY_WORDS, parse_priority
from sessions_app.planning.services import plan_of, possible_assignees


class BranchField(serializers.RegexField):
    """The name of a branch, or an empty string."""

    def __init__(self, **kwargs: Any):
        super().__init__(BRANCH_PATTERN, max_length=255, allow_blank=True, **kwargs)


class TaskSerializer(StrictModelSerializer):
    """A task."""

    team = serializers.IntegerField(source="team_id", read_only=True)
    team_name = serializers.CharField(source="team.name", read_only=True)
    repository_path = serializers.CharField(source="repository.path", read_only=True, default="")
    agent_work_state = choice_field(WORK_STATES, read_only=True)
    version = serializers.SerializerMethodField(help_text="Identifies the present title and description.")
    assignee = serializers.SerializerMethodField(help_text="User name of the assignee; null: unassigned.")
    priority = serializers.SerializerMethodField()
    labels = serializers.SerializerMethodField()

    class Meta:
        model = Task
        fields = (
            "id",
            "title",
            "description",
            "version",
            "team",
            "team_name",
            "repository",
            "repository_path",
            "base_branch",
            "state",
            "agent_work_state",
            "assignee",
            "priority",
            "labels",
            "archived_at",
            "created_by",
            "created_at",
            "updated_at",
        )
        read_only_fields = fields

    def get_version(self, task: Task) -> str:
        """Return the version of title and description, which a change may name."""
        return text_version(task)

    def get_assignee(self, task: Task) -> str | None:
        """Return the user name of who does the task."""
        assignee = plan_of(task).assignee
        if assignee is None:
            return None
        return assignee.username

    @extend_schema_field(serializers.ChoiceField(choices=PRIORITY_WORDS))
    def get_priority(self, task: Task) -> str:
        """Return the name of the priority."""
        return plan_of(task).priority.word

    def get_labels(self, task: Task) -> list[str]:
        """Return the labels, in the order in which they were given."""
        return list(plan_of(task).labels)


class FinishedTaskSerializer(TaskSerializer):
    """A task that was marked as done, and what its sessions have left."""

    unfinished = serializers.SerializerMethodField()

    class Meta:
        model = Task
        fields = (*TaskSerializer.Meta.fields, "unfinished")
        read_only_fields = fields

    @extend_schema_field(UnfinishedTaskSerializer)
    def get_unfinished(self, task: Task) -> Any:
        """Return what was left when it was marked."""
        return UnfinishedTaskSerializer(self.context["unfinished"]).data


class FinishTaskSerializer(serializers.Serializer[Any]):
    """How a task is marked as done."""

    only_if_finished = serializers.BooleanField(
        required=False, default=False, help_text="Refuse it while something is not committed, not merged, or not known."
    )


class TaskBulkRequestSerializer(serializers.Serializer[Any]):
    """An action, and the tasks to apply it to."""

    action = serializers.ChoiceField(choices=tuple(ACTIONS))
    tasks = SizedListField(child=serializers.UUIDField(), min_length=1, max_length=MAX_TASKS)
    confirmed = serializers.BooleanField(
        required=False, default=False, help_text="Also change tasks with work that is not committed or not merged."
    )


class TaskOutcomeSerializer(serializers.Serializer[Any]):
    """The result for one task; ``code`` and ``message`` are empty if it was changed."""

    task_id = serializers.UUIDField()
    ok = serializers.BooleanField()
    code = serializers.CharField(allow_blank=True)
    message = serializers.CharField(allow_blank=True)
    unfinished = UnfinishedTaskSerializer(
        source="left", allow_null=True, help_text="What it leaves; null with `confirmed`, or if it was not looked at."
    )


class TaskBulkAnswerSerializer(serializers.Serializer[Any]):
    """The results, in the order of the request."""

    results = TaskOutcomeSerializer(many=True)


class ConfirmedQuerySerializer(serializers.Serializer[Any]):
    """``?confirmed=``: the ``version`` of the unfinished work that was seen; needed if there is any."""

    confirmed = StrictCharField(required=False, allow_blank=True, default="", max_length=64)


class NewTaskSerializer(serializers.Serializer[Any]):
    """The values of a new task; ``team`` is optional for users who can write in exactly one team."""

    title = StrictCharField(max_length=300)
    description = StrictCharField(required=False, allow_blank=True, trim_whitespace=False, max_length=DESCRIPTION_LIMIT)
    team = TeamField(required=False)
    repository = serializers.UUIDField(required=False, allow_null=True)
    repository_path = StrictCharField(required=False, allow_blank=True, max_length=4096)
    base_branch = BranchField(required=False)
    idempotency_key = IdempotencyKeyField()

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Add the team if none is named, and look up the repository. Raises ReadOnly for viewers of the team."""
        if "team" not in attrs:
            attrs["team"] = self._only_team()
        require_write(self.context["request"].user, attrs["team"])
        attrs["repository"] = validate_repository(attrs["team"], attrs.get("repository"))
        return attrs

    def _only_team(self) -> Any:
        teams = list(writable_teams(self.context["request"].user)[:2])
        if len(teams) != 1:
            raise serializers.ValidationError({"team": ["Specify which team the task belongs to."]})
        return teams[0]


def validate_repository(team: Group, repository_id: Any) -> Repository | None:
    """Return the team's repository with this id, or None for no id. Raises ValidationError."""
    if repository_id is None:
        return None
    found: Repository | None = team.repositories.filter(id=repository_id).first()
    if found is None:
        raise serializers.ValidationError(
            {"repository": ["This repository does not exist, or is not open to the team."]}
        )
    return found


class TaskChangeSerializer(StrictSerializer):
    """Changes of a task; the repository can change while it has no session, the base branch while none has started.

    With ``version``, title and description are saved only over that version.
    """

    title = StrictCharField(required=False, max_length=300)
    description = StrictCharField(required=False, allow_blank=True, trim_whitespace=False, max_length=DESCRIPTION_LIMIT)
    repository = serializers.UUIDField(required=False, allow_null=True)
    base_branch = BranchField(required=False)
    assignee = StrictCharField(
        required=False, allow_null=True, max_length=150, help_text="User name; null: unassigned."
    )
    priority = serializers.ChoiceField(required=False, choices=PRIORITY_WORDS)
    labels = SizedListField(required=False, child=StrictCharField(max_length=LABEL_LENGTH), max_length=MAX_LABELS)
    version = StrictCharField(required=False, max_length=64)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Look up the repository among the team's."""
        if "repository" in attrs:
            attrs["repository"] = validate_repository(self.context["task"].team, attrs["repository"])
        if attrs.get("assignee") is not None:
            attrs["assignee"] = _find_assignee(self.context["task"].team, attrs["assignee"])
        if "priority" in attrs:
            attrs["priority"] = parse_priority(attrs["priority"])
        return attrs


def _find_assignee(team: Group, username: str) -> Any:
    """Return the member of the team with this name. Raises ValidationError."""
    found = possible_assignees(team).filter(username=username).first()
    if found is None:
        raise serializers.ValidationError({"assignee": ["The team has no active member with this name."]})
    return found


class TaskQuerySerializer(serializers.Serializer[Any]):
    """Filter of tasks: ``archived`` true or false; both if it is omitted."""

    archived = serializers.BooleanField(required=False)

"""Tasks and repositories."""

from __future__ import annotations

from typing import Any, Final

from rest_framework import serializers

from sessions_app.api.fields import IdempotencyKey, KnownFieldsOnly, RowSerializer, TeamField, Text
from sessions_app.api.words import WORK_STATES, one_of
from sessions_app.models import Repository, Task
from sessions_app.services.rights import require_write, writable_teams

DESCRIPTION_LIMIT: Final = 1024 * 1024
BRANCH: Final = r"^(?![-/.])(?!.*(?:\.\.|@\{|//|\.lock$|[/.]$))[^\s\x00-\x1f\x7f~^:?*\[\\]+$"
"""What git allows as the name of a branch or tag, roughly."""


class BranchField(serializers.RegexField):
    """The name of a branch, or nothing."""

    def __init__(self, **kwargs: Any):
        super().__init__(BRANCH, max_length=255, allow_blank=True, **kwargs)


class TaskSerializer(RowSerializer):
    """A task as it is shown."""

    team = serializers.IntegerField(source="team_id", read_only=True)
    team_name = serializers.CharField(source="team.name", read_only=True)
    repository_path = serializers.CharField(source="repository.path", read_only=True, default="")
    agent_work_state = one_of(WORK_STATES, read_only=True)

    class Meta:
        model = Task
        fields = (
            "id",
            "title",
            "description",
            "team",
            "team_name",
            "repository",
            "repository_path",
            "base_branch",
            "state",
            "agent_work_state",
            "archived_at",
            "created_by",
            "created_at",
            "updated_at",
        )
        read_only_fields = fields


class NewTask(serializers.Serializer[Any]):
    """What a new task is made of; ``team`` may be left out by somebody who is in one team only."""

    title = Text(max_length=300)
    description = Text(required=False, allow_blank=True, trim_whitespace=False, max_length=DESCRIPTION_LIMIT)
    team = TeamField(required=False)
    repository = serializers.UUIDField(required=False, allow_null=True)
    repository_path = Text(required=False, allow_blank=True, max_length=4096)
    base_branch = BranchField(required=False)
    idempotency_key = IdempotencyKey()

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Find the team where none is named, and the repository among the team's; ReadOnly for its viewers."""
        if "team" not in attrs:
            attrs["team"] = self._only_team()
        require_write(self.context["request"].user, attrs["team"])
        attrs["repository"] = repository_of(attrs["team"], attrs.get("repository"))
        return attrs

    def _only_team(self) -> Any:
        teams = list(writable_teams(self.context["request"].user)[:2])
        if len(teams) != 1:
            raise serializers.ValidationError({"team": ["Say which team the task is for."]})
        return teams[0]


def repository_of(team: Any, repository_id: Any) -> Repository | None:
    """The team's repository of this id, None for none; ValidationError for any other."""
    if repository_id is None:
        return None
    found: Repository | None = team.repositories.filter(id=repository_id).first()
    if found is None:
        raise serializers.ValidationError({"repository": ["The team has no such repository."]})
    return found


class TaskChange(KnownFieldsOnly):
    """What can be changed of a task; where it works only while it has no session."""

    title = Text(required=False, max_length=300)
    description = Text(required=False, allow_blank=True, trim_whitespace=False, max_length=DESCRIPTION_LIMIT)
    repository = serializers.UUIDField(required=False, allow_null=True)
    base_branch = BranchField(required=False)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Find the repository among the team's."""
        if "repository" in attrs:
            attrs["repository"] = repository_of(self.context["task"].team, attrs["repository"])
        return attrs


class TaskQuery(serializers.Serializer[Any]):
    """Which tasks are listed; without a word all of them."""

    archived = serializers.BooleanField(required=False)


class RepositorySerializer(RowSerializer):
    """A repository as it is shown."""

    team = serializers.IntegerField(source="team_id", read_only=True)

    class Meta:
        model = Repository
        fields = ("id", "name", "team", "path", "default_branch", "created_at")
        read_only_fields = fields


class NewRepository(serializers.Serializer[Any]):
    """What staff says of a repository that is opened to a team."""

    name = Text(max_length=200)
    team = TeamField()
    path = Text(max_length=4096, trim_whitespace=False)
    default_branch = BranchField(required=False)

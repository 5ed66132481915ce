"""Strict serializer fields, the choices they take under their schema names, and serializers used everywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, TypeVar

from django.contrib.auth.models import Group
from django.db import models
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers

from executors_app.domain import ExecutorStatus
from sessions_app.accounts.models import ApiToken
from sessions_app.accounts.team_scope import teams_of
from sessions_app.domain.attention import AttentionKind
from sessions_app.domain.recovery_facts import Policy
from sessions_app.domain.states import DesiredState, PromptState, RunState, SessionState, TaskState, WorkState
from sessions_app.domain.wait_tokens import WaitKind
from sessions_app.services.idempotency import KEY_LIMIT


def values_of(kind: type[StrEnum]) -> list[str]:
    """The words themselves."""
    return [word.value for word in kind]


ATTENTION_KINDS = values_of(AttentionKind)
DESIRED_STATES = values_of(DesiredState)
EXECUTOR_STATUSES = values_of(ExecutorStatus)
POLICIES = values_of(Policy)
PROMPT_STATES = values_of(PromptState)
RUN_STATES = values_of(RunState)
SESSION_STATES = values_of(SessionState)
TASK_STATES = values_of(TaskState)
TOKEN_SCOPES = list(ApiToken.Scope.values)
WAIT_KINDS = values_of(WaitKind)
WORK_STATES = values_of(WorkState)


def choice_field(choices: Iterable[str], **kwargs: Any) -> serializers.ChoiceField:
    """A field that takes one of these words."""
    return serializers.ChoiceField(choices=[str(choice) for choice in choices], **kwargs)


MAX_ID = 2**31


class StrictCharField(serializers.CharField):
    """A text; a number is not taken for one."""

    def to_internal_value(self, data: Any) -> str:
        """The text itself."""
        if not isinstance(data, str):
            self.fail("invalid")
        return str(super().to_internal_value(data))


class IdempotencyKeyField(StrictCharField):
    """Chosen by whoever asks, so that asking again makes nothing twice; without one each request is a new one."""

    def __init__(self, **kwargs: Any):
        super().__init__(max_length=KEY_LIMIT, allow_blank=True, default="", trim_whitespace=False, **kwargs)


class ArgvField(serializers.ListField):
    """A list of strings, as a program is started with; blanks and empty strings are kept."""

    child = StrictCharField(allow_blank=True, trim_whitespace=False, max_length=100_000)


@extend_schema_field({"oneOf": [{"type": "integer"}, {"type": "string"}]})
class TeamField(serializers.Field[Group, Any, int, Any]):
    """A team by its id or its name, out of ``teams_of(user)``."""

    default_error_messages = {"unknown": "There is no such team, or you are not in it."}

    def to_internal_value(self, data: Any) -> Group:
        """The team; a person sees only their own, staff who opens something to a team sees all."""
        user = self.context["request"].user
        teams = Group.objects.all() if self.context.get("any_team") else teams_of(user)
        by_id = isinstance(data, int) and not isinstance(data, bool) and 0 < data < MAX_ID
        if not by_id and not isinstance(data, str):
            self.fail("unknown")
        found: Group | None = teams.filter(**({"id": data} if by_id else {"name": data})).first()
        if found is None:
            self.fail("unknown")
        return found

    def to_representation(self, value: Group) -> int:
        """Its id."""
        return value.pk


class StrictSerializer(serializers.Serializer[Any]):
    """Refuses a body with a field that it does not take, so that no request does less than it says."""

    def to_internal_value(self, data: Any) -> Any:
        """The checked values; ValidationError names each unknown field beside what else is wrong."""
        problems: dict[str, Any] = {}
        if isinstance(data, Mapping):
            taken = [name for name, one in self.fields.items() if not one.read_only]
            said = f"This field is not known here. Known fields: {', '.join(taken)}."
            problems = {str(name)[:100]: [said] for name in list(data)[:100] if name not in taken}
        try:
            values = super().to_internal_value(data)
        except serializers.ValidationError as error:
            told: Any = error.detail
            raise serializers.ValidationError({**told, **problems}) from error
        if problems:
            raise serializers.ValidationError(problems)
        return values


class StrictModelSerializer(serializers.ModelSerializer[Any]):
    """A row as the API shows it; texts are strict where it is written."""

    serializer_field_mapping = {
        **serializers.ModelSerializer.serializer_field_mapping,
        models.CharField: StrictCharField,
        models.TextField: StrictCharField,
    }


Handler = TypeVar("Handler", bound=Callable[..., Any])


class ProblemSerializer(serializers.Serializer[Any]):
    """What every error looks like; ``details`` of a validation error are lists of sentences by field."""

    code = serializers.CharField()
    message = serializers.CharField()
    details = serializers.DictField()


class KeptQuerySerializer(serializers.Serializer[Any]):
    """``?kept=true``: not from the workspace, but as the repository has kept it; read only, without agentctl."""

    kept = serializers.BooleanField(default=False)


class PathQuerySerializer(serializers.Serializer[Any]):
    """``?path=``, relative to the workspace."""

    path = StrictCharField(max_length=4096, trim_whitespace=False)


class FileQuerySerializer(PathQuerySerializer, KeptQuerySerializer):
    """A file, and of when."""


class ContentQuerySerializer(FileQuerySerializer):
    """A file, of when, and whether as HTML, too."""

    highlight = serializers.BooleanField(default=False)


class FolderQuerySerializer(KeptQuerySerializer):
    """``?path=``, relative to the workspace; without one the workspace itself."""

    path = StrictCharField(max_length=4096, trim_whitespace=False, allow_blank=True, default="")


def document_responses(answers: dict[int, Any], *errors: int, **more: Any) -> Callable[[Handler], Handler]:
    """``extend_schema`` with the good answers by status, and the statuses an error may have.

    Too many wrong tokens are answered with 429. Whatever writes may be refused to those who only read, with 403;
    a list has pages that are none, 400, and pages behind the last, 404.
    """

    def describe(handler: Handler) -> Handler:
        of_all = (401, 429) if handler.__name__ == "get" else (401, 403, 429)
        of_lists = (400, 404) if any(isinstance(one, serializers.ListSerializer) for one in answers.values()) else ()
        responses = {**answers, **dict.fromkeys((*of_all, *of_lists, *errors), ProblemSerializer)}
        described_so: Handler = extend_schema(responses=responses, **more)(handler)
        return described_so

    return describe

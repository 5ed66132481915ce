"""Strict serializer fields, choices under their schema names, and serializers that several views share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, TypeVar

from django.contrib.auth.models import Group
from django.db import models
from drf_spectacular.extensions import OpenApiSerializerFieldExtension
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers

from executors_app.wire.executions import ExecutorStatus
from sessions_app.accounts.models import ApiToken
from sessions_app.accounts.team_scope import teams_of
from sessions_app.attention.rules.notices import AttentionKind
from sessions_app.background.rules.background_work import BackgroundPolicySource
from sessions_app.kernel.rules.json_size import json_size
from sessions_app.kernel.rules.states import DesiredState, PromptState, RunState, SessionState, TaskState, WorkState
from sessions_app.kernel.services.idempotency import KEY_LIMIT
from sessions_app.recovery.rules.resumability import Policy, PolicySource
from sessions_app.waits.rules.wait_keys import WaitKind


def values_of(kind: type[StrEnum]) -> list[str]:
    """Return the values of an enum."""
    return [word.value for word in kind]


ATTENTION_KINDS = values_of(AttentionKind)
DESIRED_STATES = values_of(DesiredState)
EXECUTOR_STATUSES = values_of(ExecutorStatus)
BACKGROUND_POLICY_SOURCES = values_of(BackgroundPolicySource)
POLICIES = values_of(Policy)
POLICY_SOURCES = values_of(PolicySource)
PROMPT_STATES = values_of(PromptState)
RUN_STATES = values_of(RunState)
SESSION_STATES = values_of(SessionState)
TASK_STATES = values_of(TaskState)
TOKEN_SCOPES = list(ApiToken.Scope.values)
WAIT_KINDS = values_of(WaitKind)
WORK_STATES = values_of(WorkState)


def choice_field(choices: Iterable[str], **kwargs: Any) -> serializers.ChoiceField:
    """Return a field that accepts one of these values."""
    return serializers.ChoiceField(choices=[str(choice) for choice in choices], **kwargs)


MAX_ID = 2**31


class StrictCharField(serializers.CharField):
    """A string; a number is not converted to one."""

    def to_internal_value(self, data: Any) -> str:
        """Return the string. Raises ValidationError for any other type."""
        if not isinstance(data, str):
            self.fail("invalid")
        return str(super().to_internal_value(data))


class IdempotencyKeyField(StrictCharField):
    """A key chosen by the client: repeating a request with the same key creates nothing twice."""

    def __init__(self, **kwargs: Any):
        super().__init__(max_length=KEY_LIMIT, allow_blank=True, default="", trim_whitespace=False, **kwargs)


MAX_ARGUMENTS: Final = 256


class SizedListField(serializers.ListField):
    """A list with a maximum length, which is checked before its entries.

    REST framework checks all entries first: two million wrong ones take minutes.
    """

    default_error_messages = {"max_length": "Expected at most {max_length} entries."}

    def to_internal_value(self, data: Any) -> Any:
        """Return the list. Raises ValidationError."""
        if isinstance(data, list) and self.max_length is not None and len(data) > self.max_length:
            self.fail("max_length", max_length=self.max_length)
        return super().to_internal_value(data)


class ArgvField(SizedListField):
    """The arguments of a program: a list of strings, in which spaces and empty strings are kept."""

    child = StrictCharField(allow_blank=True, trim_whitespace=False, max_length=100_000)

    def __init__(self, **kwargs: Any):
        super().__init__(**{"max_length": MAX_ARGUMENTS, **kwargs})


class SizedDictField(serializers.DictField):
    """An object with a maximum number of names, and a maximum size in all."""

    default_error_messages = {
        "too_many": "Expected at most {limit} names.",
        "too_large": "Expected at most {limit} bytes.",
    }

    def __init__(self, *, max_names: int = 100, max_bytes: int = 64 * 1024, **kwargs: Any):
        self.max_names, self.max_bytes = max_names, max_bytes
        super().__init__(**kwargs)

    def to_internal_value(self, data: Any) -> Any:
        """Return the object. Raises ValidationError, before anything looks at its values."""
        if isinstance(data, dict):
            if len(data) > self.max_names:
                self.fail("too_many", limit=self.max_names)
            if json_size(data) > self.max_bytes:
                self.fail("too_large", limit=self.max_bytes)
        return super().to_internal_value(data)


class SizedJSONField(serializers.JSONField):
    """Any JSON value of a maximum size."""

    default_error_messages = {"too_large": "Expected at most {limit} bytes."}

    def __init__(self, *, max_bytes: int, **kwargs: Any):
        self.max_bytes = max_bytes
        super().__init__(**kwargs)

    def to_internal_value(self, data: Any) -> Any:
        """Return the value. Raises ValidationError."""
        if json_size(data) > self.max_bytes:
            self.fail("too_large", limit=self.max_bytes)
        return super().to_internal_value(data)


class _SizedFieldExtension(OpenApiSerializerFieldExtension):  # type: ignore[no-untyped-call]
    """Adds the limits to the schema, where ``x-max-bytes`` is the size of the whole value."""

    match_subclasses = True

    def map_serializer_field(self, auto_schema: Any, direction: Any) -> dict[str, Any]:
        """Return the field's schema."""
        schema: dict[str, Any] = auto_schema._map_serializer_field(  # noqa: SLF001  (as its documentation says)
            self.target, direction, bypass_extensions=True
        )
        schema = dict(schema)
        if hasattr(self.target, "max_names"):
            schema["maxProperties"] = self.target.max_names
        schema["x-max-bytes"] = self.target.max_bytes
        return schema


class SizedDictFieldExtension(_SizedFieldExtension):  # type: ignore[no-untyped-call]
    """The limits of an object."""

    target_class = SizedDictField


class SizedJSONFieldExtension(_SizedFieldExtension):  # type: ignore[no-untyped-call]
    """The limit of any JSON value."""

    target_class = SizedJSONField


TEAM_NAME_LIMIT: Final = 150


@extend_schema_field({"oneOf": [{"type": "integer"}, {"type": "string", "maxLength": TEAM_NAME_LIMIT}]})
class TeamField(serializers.Field[Group, Any, int, Any]):
    """A team, by its id or name, that the user is in."""

    default_error_messages = {"unknown": "This team does not exist, or you are not a member of it."}

    def to_internal_value(self, data: Any) -> Group:
        """Return the team: one of the user's, or any team if the context has ``any_team`` (staff)."""
        user = self.context["request"].user
        teams = teams_of(user)
        if self.context.get("any_team"):
            teams = Group.objects.all()
        team: Group | None = None
        if isinstance(data, int) and not isinstance(data, bool) and 0 < data < MAX_ID:
            team = teams.filter(id=data).first()
        elif isinstance(data, str) and len(data) <= TEAM_NAME_LIMIT:
            team = teams.filter(name=data).first()
        if team is None:
            self.fail("unknown")
        return team

    def to_representation(self, value: Group) -> int:
        """Return the team's id."""
        return value.pk


class StrictSerializer(serializers.Serializer[Any]):
    """Reject a body with an unknown field, so that none is silently ignored."""

    def to_internal_value(self, data: Any) -> Any:
        """Return the validated values. Raises ValidationError, which names each unknown field beside other errors."""
        problems: dict[str, Any] = {}
        if isinstance(data, Mapping):
            known = [name for name, field in self.fields.items() if not field.read_only]
            message = f"Unknown field. Known fields: {', '.join(known)}."
            problems = {str(name)[:100]: [message] for name in list(data)[:100] if name not in known}
        try:
            values = super().to_internal_value(data)
        except serializers.ValidationError as error:
            details: Any = error.detail
            raise serializers.ValidationError({**details, **problems}) from error
        if problems:
            raise serializers.ValidationError(problems)
        return values


class StrictModelSerializer(serializers.ModelSerializer[Any]):
    """A model as the API shows it; its text fields are strict."""

    serializer_field_mapping = {
        **serializers.ModelSerializer.serializer_field_mapping,
        models.CharField: StrictCharField,
        models.TextField: StrictCharField,
    }


Handler = TypeVar("Handler", bound=Callable[..., Any])


class ProblemSerializer(serializers.Serializer[Any]):
    """The body of every error. For a validation error, ``details`` lists messages by field."""

    code = serializers.CharField()
    message = serializers.CharField()
    details = serializers.DictField()


class KeptQuerySerializer(serializers.Serializer[Any]):
    """``?kept=true`` reads the stored copy in the repository instead of the live workspace; agentctl is not needed."""

    kept = serializers.BooleanField(default=False)


class PathQuerySerializer(serializers.Serializer[Any]):
    """``?path=`` relative to the workspace."""

    path = StrictCharField(max_length=4096, trim_whitespace=False)


class FileQuerySerializer(PathQuerySerializer, KeptQuerySerializer):
    """A file, live or from the stored copy."""


class ContentQuerySerializer(FileQuerySerializer):
    """A file, live or from the stored copy, optionally with highlighted HTML."""

    highlight = serializers.BooleanField(default=False)


class FolderQuerySerializer(KeptQuerySerializer):
    """``?path=`` relative to the workspace; empty for the workspace itself."""

    path = StrictCharField(max_length=4096, trim_whitespace=False, allow_blank=True, default="")


def document_responses(answers: dict[int, Any], *errors: int, **more: Any) -> Callable[[Handler], Handler]:
    """Describe a handler's successful responses by status, and the statuses its errors may have.

    Statuses that follow from the kind of handler are added: 401 and 429 (too many wrong tokens) to all, 403 to those
    that write, and 400 and 404 to lists, for invalid pages and pages after the last.
    """

    def describe(handler: Handler) -> Handler:
        statuses = [401, 403, 429]
        if handler.__name__ == "get":
            statuses.remove(403)
        if any(isinstance(answer, serializers.ListSerializer) for answer in answers.values()):
            statuses += [400, 404]
        responses = answers | dict.fromkeys([*statuses, *errors], ProblemSerializer)
        described: Handler = extend_schema(responses=responses, **more)(handler)
        return described

    return describe

"""Fields that take what they ask for and nothing like it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib.auth.models import Group
from django.db import models
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from sessions_app.models.scoping import teams_of
from sessions_app.services.once import KEY_LIMIT

MAX_ID = 2**31


class Text(serializers.CharField):
    """A text; a number is not taken for one."""

    def to_internal_value(self, data: Any) -> str:
        """The text itself."""
        if not isinstance(data, str):
            self.fail("invalid")
        return str(super().to_internal_value(data))


class IdempotencyKey(Text):
    """Chosen by whoever asks, so that asking again makes nothing twice; without one each request is a new one."""

    def __init__(self, **kwargs: Any):
        super().__init__(max_length=KEY_LIMIT, allow_blank=True, default="", trim_whitespace=False, **kwargs)


class Argv(serializers.ListField):
    """A list of strings, as a program is started with; blanks and empty strings are kept."""

    child = Text(allow_blank=True, trim_whitespace=False, max_length=100_000)


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


class KnownFieldsOnly(serializers.Serializer[Any]):
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


class RowSerializer(serializers.ModelSerializer[Any]):
    """A row as the API shows it; texts are strict where it is written."""

    serializer_field_mapping = {
        **serializers.ModelSerializer.serializer_field_mapping,
        models.CharField: Text,
        models.TextField: Text,
    }

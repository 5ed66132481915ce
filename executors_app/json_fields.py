"""JSON columns of a known shape (object or list), and a form field that locates JSON errors."""

from __future__ import annotations

import json
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models.fields.json import KeyTransform


class JSONFormField(forms.JSONField):
    """Django's JSON form field, with the problem, line and column in its error message."""

    def to_python(self, value: Any) -> Any:
        """Return the JSON value of a text; raises ValidationError."""
        try:
            return super().to_python(value)
        except ValidationError:
            raise ValidationError(_describe_problem(value), code="invalid") from None


def _describe_problem(value: Any) -> str:
    try:
        json.loads(value)
    except json.JSONDecodeError as error:
        return f"This is not valid JSON: {error.msg} (line {error.lineno}, column {error.colno})."
    except (TypeError, ValueError, RecursionError):
        pass
    return "This is not valid JSON."


class MalformedObject(dict[str, Any]):
    """An empty object that stands for a stored value that is not an object."""

    def __init__(self, stored: Any = None):
        super().__init__()
        self.stored = stored


class MalformedList(list[Any]):
    """An empty list that stands for a stored value that is not a list."""

    def __init__(self, stored: Any = None):
        super().__init__()
        self.stored = stored


def is_malformed(value: Any) -> bool:
    """Whether a column held a value of another shape."""
    return isinstance(value, MalformedObject | MalformedList)


class _ShapedField(models.JSONField):  # type: ignore[type-arg,unused-ignore]
    """A JSON column that always reads as its shape; migrations see a plain JSON column."""

    shape: type[Any]
    misfit: type[Any]

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        """Return the value, or an empty one that remembers what was stored."""
        found = super().from_db_value(value, expression, connection)  # type: ignore[misc,unused-ignore]
        if isinstance(expression, KeyTransform) or isinstance(found, self.shape):
            return found
        return self.misfit(found)

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        """Write a malformed value back unchanged unless it was edited."""
        kept = value.stored if is_malformed(value) and not value else value
        return super().get_db_prep_value(kept, connection, prepared)

    def formfield(self, **kwargs: Any) -> Any:
        """Return a form field that locates JSON errors."""
        return super().formfield(**{"form_class": JSONFormField, **kwargs})

    def deconstruct(self) -> Any:
        """Deconstruct as Django's JSONField: the column is the same."""
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.JSONField", args, kwargs


class ObjectField(_ShapedField):
    """A JSON object."""

    shape, misfit = dict, MalformedObject


class ListField(_ShapedField):
    """A JSON list."""

    shape, misfit = list, MalformedList

"""JSON columns of which the code knows the shape (an object or a list).

And a form field that says what is wrong with a JSON text, and where.
"""

from __future__ import annotations

import json
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models.fields.json import KeyTransform


class JSONFormField(forms.JSONField):
    """As Django's; a text that is no JSON is refused with the problem, the line and the column."""

    def to_python(self, value: Any) -> Any:
        """The JSON value of a text; ValidationError."""
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
    """Empty, in the place of a stored value that is no object."""

    def __init__(self, stored: Any = None):
        super().__init__()
        self.stored = stored


class MalformedList(list[Any]):
    """Empty, in the place of a stored value that is no list."""

    def __init__(self, stored: Any = None):
        super().__init__()
        self.stored = stored


def is_malformed(value: Any) -> bool:
    """Whether a column held something else than it should."""
    return isinstance(value, MalformedObject | MalformedList)


class _ShapedField(models.JSONField):  # type: ignore[type-arg,unused-ignore]
    """A JSON column that reads as its shape; to migrations it is any JSON column."""

    shape: type[Any]
    misfit: type[Any]

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        """The value, or an empty one that remembers it."""
        found = super().from_db_value(value, expression, connection)  # type: ignore[misc,unused-ignore]
        if isinstance(expression, KeyTransform) or isinstance(found, self.shape):
            return found
        return self.misfit(found)

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        """A misfit that nobody has changed goes back as it came."""
        kept = value.stored if is_malformed(value) and not value else value
        return super().get_db_prep_value(kept, connection, prepared)

    def formfield(self, **kwargs: Any) -> Any:
        """A form field that says where a text is no JSON."""
        return super().formfield(**{"form_class": JSONFormField, **kwargs})

    def deconstruct(self) -> Any:
        """As ``models.JSONFormField``: the column is the same."""
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.JSONField", args, kwargs


class ObjectField(_ShapedField):
    """A JSON object."""

    shape, misfit = dict, MalformedObject


class ListField(_ShapedField):
    """A JSON list."""

    shape, misfit = list, MalformedList

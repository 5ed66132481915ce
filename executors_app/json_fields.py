"""JSON columns of which the code knows the shape: an object or a list.

A stored value of another shape spoils nothing: it reads as an empty one of the right shape, can be told
from a real one (``is_misfit``), and a save of the row writes it back as it was.
"""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models.fields.json import KeyTransform

from executors_app.json_forms import JSONField


class MisfitObject(dict[str, Any]):
    """Empty, in the place of a stored value that is no object."""

    def __init__(self, stored: Any = None):
        super().__init__()
        self.stored = stored


class MisfitList(list[Any]):
    """Empty, in the place of a stored value that is no list."""

    def __init__(self, stored: Any = None):
        super().__init__()
        self.stored = stored


def is_misfit(value: Any) -> bool:
    """Whether a column held something else than it should."""
    return isinstance(value, MisfitObject | MisfitList)


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
        kept = value.stored if is_misfit(value) and not value else value
        return super().get_db_prep_value(kept, connection, prepared)

    def formfield(self, **kwargs: Any) -> Any:
        """A form field that says where a text is no JSON."""
        return super().formfield(**{"form_class": JSONField, **kwargs})

    def deconstruct(self) -> Any:
        """As ``models.JSONField``: the column is the same."""
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.JSONField", args, kwargs


class ObjectField(_ShapedField):
    """A JSON object."""

    shape, misfit = dict, MisfitObject


class ListField(_ShapedField):
    """A JSON list."""

    shape, misfit = list, MisfitList

"""A form field for JSON that says what is wrong with a text, and where."""

from __future__ import annotations

import json
from typing import Any

from django import forms
from django.core.exceptions import ValidationError


class JSONField(forms.JSONField):
    """As Django's; a text that is no JSON is refused with the problem, the line and the column."""

    def to_python(self, value: Any) -> Any:
        """The JSON value of a text; ValidationError."""
        try:
            return super().to_python(value)
        except ValidationError:
            raise ValidationError(_problem(value), code="invalid") from None


def _problem(value: Any) -> str:
    try:
        json.loads(value)
    except json.JSONDecodeError as error:
        return f"This is not valid JSON: {error.msg} (line {error.lineno}, column {error.colno})."
    except (TypeError, ValueError, RecursionError):
        pass
    return "This is not valid JSON."

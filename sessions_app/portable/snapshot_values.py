"""The values of a snapshot, coerced to what the caller expects."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from sessions_app.portable.rules.lines import BadLine, parse_time


class SnapshotValues:
    """The values of one object of a snapshot, coerced to what the caller expects."""

    def __init__(self, stored: Any):
        self._values: Mapping[str, Any] = {}
        if isinstance(stored, dict):
            self._values = stored

    def __bool__(self) -> bool:
        return bool(self._values)

    def raw(self, name: str) -> Any:
        """Return the value unchanged."""
        return self._values.get(name)

    def text(self, name: str, longest: int = 1 << 30, default: str = "") -> str:
        """Return the value if it is a string, truncated to ``longest`` characters; otherwise ``default``."""
        value = self._values.get(name)
        if isinstance(value, str):
            return value[:longest]
        return default

    def one_of(self, name: str, allowed: Collection[str], default: str = "") -> str:
        """Return the value if it is allowed, else ``default``."""
        value = self._values.get(name)
        if isinstance(value, str) and value in allowed:
            return value
        return default

    def flag(self, name: str) -> bool | None:
        """Return the value if it is a boolean, else None."""
        value = self._values.get(name)
        if isinstance(value, bool):
            return value
        return None

    def number(self, name: str) -> int:
        """Return the value if it is a non-negative integer, else 0."""
        value = self._values.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53:
            return value
        return 0

    def time(self, name: str) -> datetime | None:
        """Return the value as a time, or None if it is not one."""
        try:
            return parse_time(self._values.get(name))
        except BadLine:
            return None

    def id(self, name: str) -> uuid.UUID | None:
        """Return the value as a UUID, or None if it is not one."""
        try:
            return uuid.UUID(self._values.get(name, ""))
        except (ValueError, AttributeError, TypeError):
            return None

    def inner(self, name: str) -> SnapshotValues:
        """Return a nested object; empty if the value is not an object."""
        return SnapshotValues(self._values.get(name))

    def rows(self, name: str) -> list[SnapshotValues]:
        """Return a list of nested objects; empty if the value is not a list."""
        value = self._values.get(name)
        if isinstance(value, list):
            return [SnapshotValues(row) for row in value if isinstance(row, dict)]
        return []

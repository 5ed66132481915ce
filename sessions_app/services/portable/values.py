"""Values of a snapshot that may say anything: each is what it should be, or its default."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from sessions_app.domain.portable.lines import BadLine, time_of


class Values:
    """An object of a snapshot."""

    def __init__(self, told: Any):
        self._told: Mapping[str, Any] = told if isinstance(told, dict) else {}

    def __bool__(self) -> bool:
        return bool(self._told)

    def raw(self, name: str) -> Any:
        """Whatever is there."""
        return self._told.get(name)

    def text(self, name: str, longest: int = 1 << 30, default: str = "") -> str:
        """A text, cut where it is too long."""
        value = self._told.get(name)
        return value[:longest] if isinstance(value, str) else default

    def one_of(self, name: str, allowed: Collection[str], default: str = "") -> str:
        """One of some words."""
        value = self._told.get(name)
        return value if isinstance(value, str) and value in allowed else default

    def flag(self, name: str) -> bool | None:
        """Yes, no or neither."""
        value = self._told.get(name)
        return value if isinstance(value, bool) else None

    def number(self, name: str) -> int:
        """A whole number, 0 or more."""
        value = self._told.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53 else 0

    def time(self, name: str) -> datetime | None:
        """A moment."""
        try:
            return time_of(self._told.get(name))
        except BadLine:
            return None

    def id(self, name: str) -> uuid.UUID | None:
        """One of our own ids."""
        try:
            return uuid.UUID(self._told.get(name, ""))
        except (ValueError, AttributeError, TypeError):
            return None

    def inner(self, name: str) -> Values:
        """An object within."""
        return Values(self._told.get(name))

    def rows(self, name: str) -> list[Values]:
        """Objects within."""
        value = self._told.get(name)
        return [Values(one) for one in value if isinstance(one, dict)] if isinstance(value, list) else []

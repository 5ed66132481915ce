"""Values in the JSON of agents, which may have another type than their protocol says."""

from __future__ import annotations

from typing import Any


def object_of(value: Any) -> dict[str, Any]:
    """Return the value if it is an object; else an empty one."""
    if isinstance(value, dict):
        return value
    return {}


def list_of(value: Any) -> list[Any]:
    """Return the value if it is a list; else an empty one."""
    if isinstance(value, list):
        return value
    return []

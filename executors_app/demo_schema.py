"""The demo agent's answers to prompts that require JSON of a certain shape."""

from __future__ import annotations

import json
from typing import Any, Final

MAX_DEPTH: Final = 20
"""Levels of a schema that are read."""
_EXAMPLES: Final = {"boolean": True, "integer": 1, "number": 1, "string": "demo", "array": [], "object": {}}


def parse_schema(line: str) -> dict[str, Any] | None:
    """Return the object schema that the line consists of, or None."""
    if not line.lstrip().startswith("{"):
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_schema = isinstance(found, dict) and isinstance(found.get("properties"), dict)
    return found if is_schema else None


def example(schema: object, depth: int = 0) -> Any:
    """Return a value that satisfies a plain JSON schema: true, 1, "demo", the first of several choices."""
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return None
    if choices := schema.get("enum"):
        return choices[0] if isinstance(choices, list) else None
    properties = schema.get("properties")
    if isinstance(properties, dict):
        return {name: example(one, depth + 1) for name, one in properties.items()}
    return _EXAMPLES.get(str(schema.get("type")))

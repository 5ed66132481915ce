"""What values are worth as another type, and as text."""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

from sessions_app.workflows.schema import ValueType

NUMBER: Final = re.compile(r"\s*[-+]?(\d{1,308}(\.\d{0,308})?|\.\d{1,308})([eE][-+]?\d{1,3})?\s*\Z")
_INTEGER: Final = re.compile(r"\s*[-+]?\d{1,308}\s*\Z")
_PATH_STEP: Final = re.compile(r"\.?([A-Za-z0-9_$-]+)|\[(\d{1,9})\]|\[['\"]([^'\"\]]+)['\"]\]")


class Missing:
    """There is no value, which is another thing than an empty one."""


MISSING: Final = Missing()


class Unfit(ValueError):
    """The value is none of the wanted type; the message is for people."""


def to_text(value: Any) -> str:
    """A value as templates and shells get it: texts as they are, None as nothing, all else as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def fit(value: Any, kind: ValueType) -> Any:
    """The value as ``kind``; None stays None. Raises Unfit where it says nothing of the kind."""
    if value is None or kind == "any":
        return value
    if kind in {"string", "file"}:
        return to_text(value)
    if kind == "number":
        return _number(value)
    if kind == "boolean":
        return _boolean(value)
    if kind == "files":
        return [to_text(part) for part in value] if isinstance(value, list) else to_text(value).split("\n")
    return _parsed(value)


def _number(value: Any) -> int | float | None:
    if isinstance(value, bool):
        raise Unfit(f"{to_text(value)} is not a number")
    if isinstance(value, int | float):
        return value
    if not isinstance(value, str) or (value.strip() and not NUMBER.match(value)):
        raise Unfit(f"“{to_text(value)[:80]}” is not a number")
    if not value.strip():
        return None
    number = int(value) if _INTEGER.match(value) else float(value)
    if not math.isfinite(number):
        raise Unfit(f"“{value[:80]}” is too large a number")
    return number


def _boolean(value: Any) -> bool | None:
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else None
    if word == "":
        return None
    if word not in {"true", "false"}:
        raise Unfit(f"“{to_text(value)[:80]}” is neither true nor false")
    return word == "true"


def _parsed(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def goes_on(value: Any) -> bool:
    """What a *continue* says: a boolean itself, a text if it is “true”, nothing is no, all else by being there."""
    if isinstance(value, str):
        return value.strip().lower() == "true"
    return bool(value)


def at_path(text: str, path: str) -> Any:
    """What lies at a path like ``$.items[0].name`` in a JSON text; None where nothing lies."""
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    rest = path.strip().removeprefix("$")
    while rest:
        step = _PATH_STEP.match(rest)
        if step is None:
            return None
        found = _step(found, step)
        rest = rest[step.end() :]
    return found


def _step(found: Any, step: re.Match[str]) -> Any:
    word, index, quoted = step.groups()
    if index is not None:
        return found[int(index)] if isinstance(found, list) and int(index) < len(found) else None
    return found.get(word or quoted) if isinstance(found, dict) else None


def is_path(path: str) -> bool:
    """Whether ``at_path`` can follow it."""
    rest = path.strip().removeprefix("$")
    while rest:
        step = _PATH_STEP.match(rest)
        if step is None:
            return False
        rest = rest[step.end() :]
    return True

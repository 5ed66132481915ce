"""Convert values between port types and text, and find and fill in ``{{ node.port }}`` templates."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from sessions_app.workflows.language import limits
from sessions_app.workflows.language.schema import ValueType

NUMBER: Final = re.compile(r"\s*[-+]?(\d{1,308}(\.\d{0,308})?|\.\d{1,308})([eE][-+]?\d{1,3})?\s*\Z")
_INTEGER: Final = re.compile(r"\s*[-+]?\d{1,308}\s*\Z")
_PATH_STEP: Final = re.compile(r"\.?([A-Za-z0-9_$-]+)|\[(\d{1,9})\]|\[['\"]([^'\"\]]+)['\"]\]")


MISSING: Final = object()
"""No value at all, as opposed to an empty one."""
TEMPLATE: Final = re.compile(r"\{\{\s*(?P<node>[A-Za-z0-9_-]+)(?:\.(?P<port>[A-Za-z0-9_-]+))?\s*\}\}")
INPUTS_NAME: Final = "inputs"


class ConversionError(ValueError):
    """The value cannot be converted to the required type; users see the message."""


def to_text(value: Any) -> str:
    """Return a value as templates and shells see it: text unchanged, None as “”, anything else as JSON."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def convert_value(value: Any, kind: ValueType) -> Any:
    """Convert a value to a port type; None stays None. Raises ConversionError."""
    if value is None or kind == "any":
        return value
    if kind in {"string", "file"}:
        return to_text(value)
    if kind == "number":
        return _number(value)
    if kind == "boolean":
        return _boolean(value)
    if kind == "files":
        if isinstance(value, list):
            return [to_text(part) for part in value]
        return to_text(value).split("\n")
    return _parse_json(value)


def _number(value: Any) -> int | float | None:
    if isinstance(value, bool):
        raise ConversionError(f"{to_text(value)} is not a number")
    if isinstance(value, int | float):
        return value
    if not isinstance(value, str) or (value.strip() and not NUMBER.match(value)):
        raise ConversionError(f"“{to_text(value)[:80]}” is not a number")
    if not value.strip():
        return None
    number = int(value) if _INTEGER.match(value) else float(value)
    if not math.isfinite(number):
        raise ConversionError(f"“{value[:80]}” is too large for a number")
    return number


def _boolean(value: Any) -> bool | None:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        word = value.strip().lower()
        if word == "":
            return None
        if word in {"true", "false"}:
            return word == "true"
    raise ConversionError(f"“{to_text(value)[:80]}” is neither true nor false")


def _parse_json(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def is_truthy(value: Any) -> bool:
    """Return whether a value at a *continue* slot means yes: text if it is “true”, anything else by its truth value."""
    if isinstance(value, str):
        return value.strip().lower() == "true"
    return bool(value)


def value_at_path(text: str, path: str) -> Any:
    """Return the value at a path like ``$.items[0].name`` in a JSON text; None if there is none."""
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    rest = path.strip().removeprefix("$")
    while rest:
        step = _PATH_STEP.match(rest)
        if step is None:
            return None
        found = _follow_step(found, step)
        rest = rest[step.end() :]
    return found


def _follow_step(found: Any, step: re.Match[str]) -> Any:
    word, index, quoted = step.groups()
    if index is not None:
        if isinstance(found, list) and int(index) < len(found):
            return found[int(index)]
        return None
    if isinstance(found, dict):
        return found.get(word or quoted)
    return None


Lookup = Callable[[str, str], Any]
"""Maps (node or ``inputs``, port) to a value, or to MISSING: then the template stays as it is written."""


def parse_reference(found: re.Match[str]) -> tuple[str, str] | None:
    """Return the (node, port) that a match refers to; None if the braces contain no reference."""
    if found["port"] is not None:
        return found["node"], found["port"]
    if found["node"] == "input":
        return (INPUTS_NAME, "input")
    return None


class LineCounter:
    """Counts the lines before ascending positions of a text, so that all of them together take one pass."""

    def __init__(self, text: str):
        self._text = text
        self._position = self._lines = 0

    def before(self, place: int) -> int:
        """Return how many lines end before a position, which must not be before the previous one."""
        self._lines += self._text.count("\n", self._position, place)
        self._position = place
        return self._lines


def find_references(text: str) -> Iterator[tuple[str, str, int]]:
    """Yield the (node, port, line) of every reference in a text; lines count from 0."""
    lines = LineCounter(text)
    for found in TEMPLATE.finditer(text):
        reference = parse_reference(found)
        if reference is not None:
            yield (*reference, lines.before(found.start()))


class TooLong(ValueError):
    """The text is longer than ``MAX_FILLED`` once its templates are filled in; users see the message."""


def render_template(text: str, lookup: Lookup) -> str:
    """Return the text with its templates filled in; templates within values are left alone. Raises TooLong.

    A template can occur many thousand times, and its value can be a MiB. The length is therefore checked while the
    text grows, not afterwards.
    """
    length = len(text)

    def value_of(found: re.Match[str]) -> str:
        nonlocal length
        replacement = found.group()
        reference = parse_reference(found)
        if reference is not None:
            value = lookup(*reference)
            if value is not MISSING:
                replacement = to_text(value)
        length += len(replacement) - len(found.group())
        # The templates still to come can only shorten the text by their own length, so no valid text is refused here.
        if length - len(text) > limits.MAX_FILLED:
            raise _too_long()
        return replacement

    result = TEMPLATE.sub(value_of, text)
    if len(result) > limits.MAX_FILLED:
        raise _too_long()
    return result


def _too_long() -> TooLong:
    return TooLong(f"with its templates filled in, it has more than {limits.MAX_FILLED} characters")

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


class MissingValue:
    """There is no value, which is another thing than an empty one."""


MISSING: Final = MissingValue()


class ConversionError(ValueError):
    """The value is none of the wanted type; the message is for people."""


def to_text(value: Any) -> str:
    """A value as templates and shells get it: texts as they are, None as nothing, all else as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def convert_value(value: Any, kind: ValueType) -> Any:
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
        raise ConversionError(f"“{value[:80]}” is too large a number")
    return number


def _boolean(value: Any) -> bool | None:
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else None
    if word == "":
        return None
    if word not in {"true", "false"}:
        raise ConversionError(f"“{to_text(value)[:80]}” is neither true nor false")
    return word == "true"


def _parse_json(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def is_truthy(value: Any) -> bool:
    """What a *continue* says: a boolean itself, a text if it is “true”, nothing is no, all else by being there."""
    if isinstance(value, str):
        return value.strip().lower() == "true"
    return bool(value)


def value_at_path(text: str, path: str) -> Any:
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
        found = _follow_step(found, step)
        rest = rest[step.end() :]
    return found


def _follow_step(found: Any, step: re.Match[str]) -> Any:
    word, index, quoted = step.groups()
    if index is not None:
        return found[int(index)] if isinstance(found, list) and int(index) < len(found) else None
    return found.get(word or quoted) if isinstance(found, dict) else None


def is_value_path(path: str) -> bool:
    """Whether ``at_path`` can follow it."""
    rest = path.strip().removeprefix("$")
    while rest:
        step = _PATH_STEP.match(rest)
        if step is None:
            return False
        rest = rest[step.end() :]
    return True


TEMPLATE: Final = re.compile(r"\{\{\s*(?P<node>[A-Za-z0-9_-]+)(?:\.(?P<port>[A-Za-z0-9_-]+))?\s*\}\}")
INPUTS_NAME: Final = "inputs"

Lookup = Callable[[str, str], Any]
"""(node or ``inputs``, port) to a value, or MISSING: then the template stays as it is written."""


def parse_reference(found: re.Match[str]) -> tuple[str, str] | None:
    """What a match asks for; None for words in braces that are no template."""
    if found["port"] is not None:
        return found["node"], found["port"]
    return (INPUTS_NAME, "input") if found["node"] == "input" else None


class LineCounter:
    """Counts the lines before places in a text that come in their order, so that the whole takes one pass."""

    def __init__(self, text: str):
        self._text = text
        self._at = self._lines = 0

    def before(self, place: int) -> int:
        """How many lines end before a place, which is not before the one asked for last."""
        self._lines += self._text.count("\n", self._at, place)
        self._at = place
        return self._lines


def find_references(text: str) -> Iterator[tuple[str, str, int]]:
    """Every (node, port) that a text asks for, with the line in the text, from 0."""
    lines = LineCounter(text)
    for found in TEMPLATE.finditer(text):
        asked = parse_reference(found)
        if asked is not None:
            yield (*asked, lines.before(found.start()))


class TooLong(ValueError):
    """The text is longer than ``MAX_FILLED`` once its templates are filled in; the message is for people."""


def render_template(text: str, lookup: Lookup) -> str:
    """The text with its templates filled in. What a value holds is never looked at again. Raises TooLong.

    One template can stand in a text many thousand times, and its value can be a MiB: so the length is checked while
    the text grows, not afterwards.
    """
    length = len(text)

    def filled(found: re.Match[str]) -> str:
        nonlocal length
        asked = parse_reference(found)
        value = MISSING if asked is None else lookup(*asked)
        told = found.group() if value is MISSING else to_text(value)
        length += len(told) - len(found.group())
        # What is still to come can shorten the text, by no more than its templates are long.
        if length - len(text) > limits.MAX_FILLED:
            raise _too_long()
        return told

    result = TEMPLATE.sub(filled, text)
    if len(result) > limits.MAX_FILLED:
        raise _too_long()
    return result


def _too_long() -> TooLong:
    return TooLong(f"with its templates filled in it has more than {limits.MAX_FILLED} characters")

"""Templates: ``{{ node.port }}``, ``{{ inputs.port }}`` and ``{{ input }}`` in the texts of nodes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from sessions_app.workflows import limits
from sessions_app.workflows.values import MISSING, to_text

TEMPLATE: Final = re.compile(r"\{\{\s*(?P<node>[A-Za-z0-9_-]+)(?:\.(?P<port>[A-Za-z0-9_-]+))?\s*\}\}")
INPUTS: Final = "inputs"

Lookup = Callable[[str, str], Any]
"""(node or ``inputs``, port) to a value, or MISSING: then the template stays as it is written."""


def reference(found: re.Match[str]) -> tuple[str, str] | None:
    """What a match asks for; None for words in braces that are no template."""
    if found["port"] is not None:
        return found["node"], found["port"]
    return (INPUTS, "input") if found["node"] == "input" else None


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


def references(text: str) -> Iterator[tuple[str, str, int]]:
    """Every (node, port) that a text asks for, with the line in the text, from 0."""
    lines = LineCounter(text)
    for found in TEMPLATE.finditer(text):
        asked = reference(found)
        if asked is not None:
            yield (*asked, lines.before(found.start()))


class TooLong(ValueError):
    """The text is longer than ``MAX_FILLED`` once its templates are filled in; the message is for people."""


def render(text: str, lookup: Lookup) -> str:
    """The text with its templates filled in. What a value holds is never looked at again. Raises TooLong.

    One template can stand in a text many thousand times, and its value can be a MiB: so the length is checked while
    the text grows, not afterwards.
    """
    length = len(text)

    def filled(found: re.Match[str]) -> str:
        nonlocal length
        asked = reference(found)
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

"""Texts and values of any size that made one part or another of a program slow before, here or elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

SIZES: Final = (8_000, 16_000, 32_000, 64_000, 128_000)
"""Characters. The largest is more than what most fields accept, so it also shows what a refusal costs."""

_REPEATED: Final = {
    "letters": "a",
    "blank lines": "\n",
    "spaces": " ",
    "keywords of secrets": "recaptcha_key ",
    "assignments": "password='",
    "brackets": "[",
    "links": "[a](b ",
    "emphasis": "*a_",
    "quotes": "> ",
    "code fences": "```c\n",
    "table cells": "|",
    "table rows": "|a|b|\n|-|-|\n",
    "entities": "&amp",
    "tags": "<a ",
    "addresses": "a@a.",
    "backticks": "`` ` ",
    "backslashes": "\\",
    "escape characters": "\x1b]0;",
    "bidirectional characters": "\u202e",
    "combining characters": "e\u0301",
    "diff lines": "-a\n+b\n",
    "template tags": "{{ {% ",
}


def repeat(piece: str, size: int) -> str:
    """Return a piece repeated to ``size`` characters."""
    return (piece * (size // len(piece) + 1))[:size]


TEXTS: Final[Mapping[str, Callable[[int], str]]] = {
    name: partial(repeat, piece) for name, piece in _REPEATED.items()
} | {"C block of blank lines": lambda size: f"```c\n{repeat(chr(10), size)}```\n"}


def mixture(size: int) -> str:
    """Return a text of all shapes, one after the other, where each has the same share of ``size``."""
    return "\n\n".join(shape(size // len(TEXTS)) for shape in TEXTS.values())


def many_fields(size: int) -> dict[str, Any]:
    """Return an object of about ``size`` characters with fields that nobody knows."""
    return {f"field{number}": 0 for number in range(size // 12)}


def nested(size: int) -> Any:
    """Return lists within lists, as deep as Python can write, and as many of them as ``size`` characters take."""
    depth = 200
    value: Any = []
    for _ in range(depth):
        value = [value]
    return [value] * (size // (2 * depth))


def fill(value: Any, text: str) -> Any:
    """Return a value in which ``text`` takes the place of every text."""
    if isinstance(value, Mapping):
        return {name: fill(inner, text) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [fill(inner, text) for inner in value]
    return text if isinstance(value, str) else value

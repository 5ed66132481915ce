"""The plan of a task: priorities and labels (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Final

MAX_LABELS: Final = 10
"""Labels of one task."""
LABEL_LENGTH: Final = 40
"""Characters of a label."""


class Priority(IntEnum):
    """How urgent a task is; the API names them in lower case."""

    NONE = 0
    LOW = 1
    MEDIUM = 2
    HIGH = 3
    URGENT = 4

    @property
    def word(self) -> str:
        """Its name in the API."""
        return self.name.lower()


PRIORITY_WORDS: Final = tuple(priority.word for priority in Priority)


def parse_priority(word: str) -> Priority | None:
    """Return the priority with this name; None if there is none."""
    return next((priority for priority in Priority if priority.word == word), None)


def split_labels(text: str) -> list[str]:
    """Return the labels of a text in which commas separate them."""
    return clean_labels(text.split(","))


def clean_labels(labels: Iterable[str]) -> list[str]:
    """Return labels without surrounding and repeated white space, each once whatever its case, as first written.

    Raises ValueError, with a sentence for users, for too many, for one that is too long and for one with a comma.
    """
    found: dict[str, str] = {}
    for label in labels:
        text = " ".join(label.split())
        if text:
            found.setdefault(text.casefold(), text)
    if len(found) > MAX_LABELS:
        raise ValueError(f"A task has at most {MAX_LABELS} labels.")
    for text in found.values():
        if len(text) > LABEL_LENGTH:
            raise ValueError(f"A label has at most {LABEL_LENGTH} characters.")
        if "," in text:
            raise ValueError("A label has no comma.")
    return list(found.values())

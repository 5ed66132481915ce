"""The words of a text: runs of letters and digits, compared without case and accents."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

LONGEST_WORD: Final = 200
"""Characters of a word that are compared. Nobody searches for more, and databases limit what they index."""
_WORD: Final = re.compile(r"[^\W_]+")


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a text, and where it is there."""

    begin: int
    end: int
    folded: str
    """As it is compared."""


def words_of(text: str, begin: int = 0) -> Iterator[Word]:
    """Yield the words of a text in order, from ``begin``; the time is proportional to its length."""
    for found in _WORD.finditer(text, begin):
        folded = fold(found.group())
        if folded:
            yield Word(found.start(), found.end(), folded)


def fold(word: str) -> str:
    """Return a word as it is compared: only letters and digits, without case and accents. It may be empty."""
    word = word[:LONGEST_WORD]
    if word.isascii():
        return word.lower()
    apart = unicodedata.normalize("NFKD", word.casefold())
    return "".join(character for character in apart if character.isalnum())[:LONGEST_WORD]


def folded_text(text: str) -> str:
    """Return the words of a text as they are compared, with a space between them."""
    return " ".join(word.folded for word in words_of(text))

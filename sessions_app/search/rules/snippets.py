"""The part of a text that is shown of a result, with the words marked that were searched for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from sessions_app.search.rules.queries import SearchQuery, Term
from sessions_app.search.rules.words import Word, words_of

SNIPPET_LENGTH: Final = 260
"""Characters of a snippet."""
BEFORE_MATCH: Final = 70
"""Characters of it before the first marked word."""
CUT: Final = "…"


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a snippet. Nothing in it is escaped."""

    text: str
    marked: bool = False


def snippet(text: str, query: SearchQuery) -> list[Piece]:
    """Return the pieces of a snippet around the first words that match; its beginning if none does.

    The database has found the text. It may compare a few rare characters in another way, and then nothing is marked.
    """
    words = list(words_of(text))
    spans = _merged(sorted(_matches(words, query)))
    begin = 0
    if spans:
        begin = _word_begin(text, max(0, spans[0][0] - BEFORE_MATCH))
    end = _word_end(text, begin + SNIPPET_LENGTH)
    pieces = [Piece(CUT)] if begin > 0 else []
    at = begin
    for first, last in spans:
        if first >= end:
            break
        pieces += [Piece(text[at:first]), Piece(text[first : min(last, end)], marked=True)]
        at = min(last, end)
    pieces.append(Piece(text[at:end]))
    if end < len(text):
        pieces.append(Piece(CUT))
    return [piece for piece in pieces if piece.text]


def _matches(words: Sequence[Word], query: SearchQuery) -> Iterator[tuple[int, int]]:
    """Yield where each term is in a text."""
    for term in query.terms:
        for first in range(len(words) - len(term.words) + 1):
            if _is_at(words, first, term):
                yield words[first].begin, words[first + len(term.words) - 1].end


def _is_at(words: Sequence[Word], first: int, term: Term) -> bool:
    last = len(term.words) - 1
    for number, wanted in enumerate(term.words):
        found = words[first + number].folded
        if term.is_beginning and number == last:
            if not found.startswith(wanted):
                return False
        elif found != wanted:
            return False
    return True


def _merged(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for begin, end in spans:
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


_LONGEST_MOVE: Final = 30
"""Characters by which a cut moves to the next space; a text may have none."""


def _word_begin(text: str, at: int) -> int:
    if at == 0:
        return 0
    space = text.find(" ", at, at + _LONGEST_MOVE)
    return at if space < 0 else space + 1


def _word_end(text: str, at: int) -> int:
    if at >= len(text):
        return len(text)
    space = text.rfind(" ", at - _LONGEST_MOVE, at)
    return at if space < 0 else space

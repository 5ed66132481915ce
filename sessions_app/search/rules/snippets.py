"""The part of a text that is shown of a result, with the words marked that were searched for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from sessions_app.search.rules.queries import SearchQuery, Term
from sessions_app.search.rules.words import words_of

SNIPPET_LENGTH: Final = 260
"""Characters of a snippet."""
BEFORE_MATCH: Final = 70
"""Characters of it before the first marked word."""
WORDS_COMPARED: Final = 2_500
"""Words of a text that are compared: as many as usual texts have; hostile ones have thousands of single letters."""
CUT: Final = "…"


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a snippet. Nothing in it is escaped."""

    text: str
    marked: bool = False


def snippet(text: str, query: SearchQuery) -> list[Piece]:
    """Return the pieces of a snippet around the first words that match; its beginning if none does.

    The database has found the text. It may compare a few rare characters in another way, or a hostile text has the
    match behind ``WORDS_COMPARED`` words, and then nothing is marked.
    """
    spans = _merged(sorted(_matches(text, query)))
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


def _matches(text: str, query: SearchQuery) -> Iterator[tuple[int, int]]:
    """Yield where terms are in a text: from the first that is found, as far as a snippet reaches."""
    begins: list[int] = []
    folded: list[str] = []
    ends_with = _terms_by_last_word(query)
    stops_at = len(text)
    for word in islice(words_of(text, _first_look(text, query)), WORDS_COMPARED):
        if word.begin >= stops_at:
            break
        begins.append(word.begin)
        folded.append(word.folded)
        terms = ends_with.get(word.folded, ())
        for term in (*terms, *_begun_terms(query, word.folded)):
            length = len(term.words)
            if folded[-length:-1] != list(term.words[:-1]):
                continue
            begin = begins[-length]
            stops_at = min(stops_at, begin + SNIPPET_LENGTH)
            yield begin, word.end


def _first_look(text: str, query: SearchQuery) -> int:
    """Return where a term first begins as it was typed; 0 if that is nowhere, and it is only written in another way."""
    begins = "|".join(re.escape(term.written[0]) for term in query.terms)
    found = re.search(rf"(?<![^\W_])(?:{begins})", text, re.IGNORECASE)
    return found.start() if found else 0


def _terms_by_last_word(query: SearchQuery) -> dict[str, list[Term]]:
    """Return the terms of whole words by their last one, so that a word is compared with none of the others."""
    terms: dict[str, list[Term]] = {}
    for term in query.terms:
        if not term.is_beginning:
            terms.setdefault(term.words[-1], []).append(term)
    return terms


def _begun_terms(query: SearchQuery, folded: str) -> Sequence[Term]:
    """Return the term whose last word may go on, if this word does."""
    last = query.terms[-1:]
    if last and last[0].is_beginning and folded.startswith(last[0].words[-1]):
        return last
    return ()


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

"""What somebody has typed into a search field becomes terms. Nothing of it reaches a database as syntax."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, replace
from typing import Final

from sessions_app.search.rules.words import words_of

LONGEST_QUERY: Final = 200
"""Characters of a query."""
MOST_TERMS: Final = 12
"""Terms of a query; those after them are left out, which the page says."""
SHORTEST_BEGINNING: Final = 2
"""Characters of a last word that may go on: with fewer, nearly every text matches."""
_PIECE: Final = re.compile(r'"([^"]*)"?|([^\s"]+)')


@dataclass(frozen=True, slots=True)
class Term:
    """Words that have to follow each other in a text."""

    words: tuple[str, ...]
    """As they are compared: letters and digits only."""
    written: tuple[str, ...]
    """As they were typed, with letters and digits only."""
    is_beginning: bool = False
    """Whether the last word may go on."""


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """The terms of a query; a text has to match all of them."""

    terms: tuple[Term, ...] = ()
    is_cut: bool = False
    """Whether there were more terms than are searched for."""


def parse_query(text: str) -> SearchQuery:
    """Return the terms of a query. Every text is a query; one without letters and digits has no terms.

    Quotation marks join words, and so does what is written without a space: ``module_03`` means *module* before *03*.
    The last word may go on, unless it is quoted.
    """
    terms: list[Term] = []
    is_quoted = False
    for quoted, plain in _PIECE.findall(unicodedata.normalize("NFC", text[:LONGEST_QUERY])):
        piece = quoted or plain
        words = list(words_of(piece))
        if words:
            is_quoted = bool(quoted)
            written = tuple(piece[word.begin : word.end] for word in words)
            terms.append(Term(tuple(word.folded for word in words), written))
    is_cut = len(terms) > MOST_TERMS
    if terms and not is_cut and not is_quoted and len(terms[-1].words[-1]) >= SHORTEST_BEGINNING:
        terms[-1] = replace(terms[-1], is_beginning=True)
    return SearchQuery(tuple(terms[:MOST_TERMS]), is_cut)


def fts5_query(query: SearchQuery) -> str:
    """Return the query for SQLite. Words have letters and digits only, so none of them ends its quotation."""
    parts = []
    for term in query.terms:
        phrase = f'"{" ".join(term.written)}"'
        parts.append(f"{phrase} *" if term.is_beginning else phrase)
    return " AND ".join(parts)


def tsquery(query: SearchQuery) -> str:
    """Return the query for PostgreSQL, in the form of the type ``tsquery``."""
    parts = []
    for term in query.terms:
        words = [f"'{word}'" for word in term.words]
        if term.is_beginning:
            words[-1] += ":*"
        parts.append(f"({' <-> '.join(words)})")
    return " & ".join(parts)

"""Remove secrets from a text, or from a part of one, also where it has been cut."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from executors_app.machine.costly_work import begin_costly_work
from sessions_app.redaction.secret_spans import MIN_SECRET_LENGTH, REDACTION_MARK, find_secrets

_WORD: Final = re.compile(r"[\w+/=.~%\\-]*+", re.ASCII)
"""A word that may be a key or a part of one."""
CONTEXT: Final = 1000
"""Characters before and behind a part of a text that are searched too."""
CUT_WORD: Final = 200
"""Characters beside a cut that are left out if they may belong to a key. Of a longer key, so much is missing that
nobody can guess it; and an agent cannot hide the end of its command by one long word."""


def redact(text: str, known: Iterable[str] = ()) -> tuple[str, int]:
    """Replace each secret in ``text`` by ``REDACTION_MARK``; return the text and the number of replacements.

    ``known`` contains secrets by value. They are also found in JSON, in addresses, in HTML and in Base64. The time is
    proportional to the length of the text, whatever it contains.

    Half of a secret looks like none: redact before a text is cut, by ``redact_part``.
    """
    return redact_part(text, 0, len(text), known)


def redact_part(
    text: str, begin: int, end: int, known: Iterable[str] = (), *, cut_before: bool = False, cut_after: bool = False
) -> tuple[str, int]:
    """Return ``text[begin:end]`` without secrets, and the number of replacements.

    What precedes and follows it is searched too, up to ``CONTEXT`` characters. ``cut_before`` and ``cut_after`` say
    that ``text`` itself has been cut there. A word that reaches to where the search ends may be half of a
    key, so nothing of it is in the part that is nearer than ``CUT_WORD`` to that place.
    """
    begin_costly_work("a search for secrets")
    begin, end = max(0, begin), max(0, min(end, len(text)))
    first, last = max(0, begin - CONTEXT), min(len(text), end + CONTEXT)
    searched = text[first:last]
    values = {value for value in known if len(value) >= MIN_SECRET_LENGTH}
    spans = list(_merge(find_secrets(searched, values)))
    begin, end = begin - first, end - first
    if first > 0 or cut_before:
        begin = max(begin, _end_of_cut_word(searched))
    if last < len(text) or cut_after:
        end = min(end, _begin_of_cut_word(searched), _begin_of_cut_value(searched, values))
    return _replace(searched, spans, begin, end)


def without_cut_word(text: str) -> str:
    """Return a text whose end has been cut off without its last word, which may be half of a key."""
    return text[: _begin_of_cut_word(text)]


def without_cut_beginning(text: str) -> str:
    """Return a text whose beginning has been cut off without its first word, which may be half of a key."""
    return text[_end_of_cut_word(text) :]


def _end_of_cut_word(text: str) -> int:
    word = _WORD.match(text, 0, CUT_WORD)
    if word:
        return word.end()
    return 0


def _begin_of_cut_word(text: str) -> int:
    return len(text) - _end_of_cut_word(text[: -CUT_WORD - 1 : -1])


def _begin_of_cut_value(text: str, values: Iterable[str]) -> int:
    """Return where the beginning of a known value is at the end of a text; the text's length if there is none."""
    return len(text) - max((_length_of_cut_value(text, value) for value in values), default=0)


def _length_of_cut_value(text: str, value: str) -> int:
    """Return how many characters of a known value the text ends with, without its last ones; 0 if they are too few."""
    for length in range(min(len(value) - 1, len(text)), MIN_SECRET_LENGTH - 1, -1):
        if text.endswith(value[:length]):
            return length
    return 0


def _replace(text: str, spans: Iterable[tuple[int, int]], begin: int, end: int) -> tuple[str, int]:
    parts: list[str] = []
    count = 0
    for start, stop in spans:
        if stop > begin and start < end:
            parts += (text[begin:start], REDACTION_MARK)
            count += 1
            begin = max(begin, stop)
    parts.append(text[begin:end])
    return "".join(parts), count


def _merge(spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the spans in order, those that overlap or touch as one."""
    begin = end = 0
    for start, stop in sorted(spans):
        if start > end:
            if end > begin:
                yield begin, end
            begin = start
        end = max(end, stop)
    if end > begin:
        yield begin, end

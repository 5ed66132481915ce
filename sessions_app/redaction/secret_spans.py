"""Find the secrets in a text: by the rules, by the names of their variables, and by value."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from sessions_app.redaction.assigned_values import assigned_values
from sessions_app.redaction.encoded_text import base64_view, decoded, has_escapes, in_base64

REDACTION_MARK: Final = "[REDACTED]"
MIN_SECRET_LENGTH: Final = 8
"""Known values shorter than this are not redacted: they may be ordinary words."""
_PIECE: Final = re.compile(r".{1,400}(?:\s|$)|.{1,400}", re.DOTALL)
"""Text that the rules for names see at once. It is short because their running time grows with its square."""
_BEFORE_CUT: Final = 100
_AFTER_CUT: Final = 200
"""Characters around each cut between two pieces that the rules see once more: a name may be in one piece, and its
value in the next one."""
_REST_OF_VALUE: Final = re.compile(r"[^\s'\"`]*+")
"""What belongs to a value that is longer than the text that the rules see at once."""
_REST_OF_KEY: Final = re.compile(r"(?<=[\w-])[\w-]*+")
_MIN_NAMED_LENGTH: Final = 5
"""A name and its value have at least so many characters, as in ``pwd=x``."""


def find_secrets(text: str, values: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each secret: in the text as it is, and as it reads without its escapes."""
    yield from find_secret_spans(text)
    yield from find_known_values(text, values)
    if has_escapes(text):
        view = decoded(text)
        for start, stop in (*find_secret_spans(view.text), *find_known_values(view.text, values)):
            yield view.original(start, stop)


def find_secret_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield begin and end of what the rules find in a text; spans may overlap, and be found twice."""
    # Imported at the first use, because loading detect-secrets is slow (about 0.15 s).
    from sessions_app.redaction import secret_rules  # noqa: PLC0415

    for rule in secret_rules.RULES:
        yield from _find_by_rule(text, rule)
    yield from assigned_values(text)
    at = 0
    for line in text.splitlines(keepends=True):
        for start, stop in _named_spans(line, secret_rules.find_named_secrets):
            yield at + start, at + stop
        at += len(line)


def _find_by_rule(text: str, rule: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each match, and of its group ``secret`` if there is one, with the rest of its word."""
    has_group = "secret" in rule.groupindex
    rest = range(0)
    for match in rule.finditer(text):
        start, stop = match.span("secret") if has_group else match.span()
        if match.lastgroup == "skipped" or start == stop:
            continue
        if stop not in rest:
            rest = range(stop, _end_of_key(text, stop))
        yield start, max(stop, rest.stop)


def _end_of_key(text: str, at: int) -> int:
    """Return where a key ends of which a rule knows only the beginning, because it is longer than those it expects."""
    rest = _REST_OF_KEY.match(text, at)
    if rest:
        return rest.end()
    return at


def find_known_values(text: str, values: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each of these values, also as it reads without escapes, and in Base64."""
    values = list(values)
    if not values:
        return
    plain: set[str] = set()
    encoded: set[str] = set()
    for value in values:
        plain.update(_plain_forms(value))
        encoded.update(in_base64(value))
    yield from _find_values(text, plain)
    view = base64_view(text)
    for start, stop in _find_values(view.text, encoded):
        yield view.original(start, stop)


def _plain_forms(value: str) -> Iterator[str]:
    """Yield a value as it is, without escapes, and with the spaces of a form in an address."""
    for form in (value, value.replace(" ", "+")):
        yield form
        if has_escapes(form):
            plain = decoded(form).text
            if len(plain) >= MIN_SECRET_LENGTH:
                yield plain


def _find_values(text: str, values: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each of these values in a text.

    Their number makes no difference: they are looked up by their beginning.
    """
    by_beginning = defaultdict(list)
    for value in values:
        by_beginning[value[:MIN_SECRET_LENGTH]].append(value)
    if not by_beginning:
        return
    for start in range(len(text) - MIN_SECRET_LENGTH + 1):
        for value in by_beginning.get(text[start : start + MIN_SECRET_LENGTH], ()):
            if text.startswith(value, start):
                yield start, start + len(value)


def _named_spans(line: str, find_secrets: Callable[[str], Iterable[str]]) -> Iterator[tuple[int, int]]:
    """Yield begin and end of what its variable name, or its entropy, shows to be a secret."""
    # Where the value that continued behind a window was last seen to end, so that its rest is read only once.
    value = range(0)
    for begin, end in _windows(line):
        window = line[begin:end]
        for secret in set(find_secrets(window.rstrip("\r\n"))):
            if secret in REDACTION_MARK:
                continue
            for at in _places(secret, window):
                start, stop = begin + at, begin + at + len(secret)
                if stop == end:
                    if stop not in value:
                        value = _rest_of_value(line, stop)
                    stop = value[-1]
                yield start, stop


def _windows(line: str) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each piece of a line, and of the text around each cut between two of them."""
    for piece in _PIECE.finditer(line):
        cut, end = piece.span()
        if end - cut >= _MIN_NAMED_LENGTH:
            yield cut, end
        if cut:
            yield max(0, cut - _BEFORE_CUT), min(len(line), cut + _AFTER_CUT)


def _places(secret: str, text: str) -> Iterator[int]:
    """Yield where a secret is in a text."""
    at = text.find(secret)
    while at >= 0:
        yield at
        at = text.find(secret, at + len(secret))


def _rest_of_value(line: str, begin: int) -> range:
    """Return the places from ``begin`` up to and including the end of the value that continues there."""
    rest = _REST_OF_VALUE.match(line, begin)
    end = rest.end() if rest else begin
    return range(begin, end + 1)

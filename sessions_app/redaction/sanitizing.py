"""Read ids and numbers in foreign text, and make it safe to show and to pass on: visible controls, redacted secrets."""

from __future__ import annotations

import json
import re
import unicodedata
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Final

from executors_app.machine.costly_work import begin_costly_work
from sessions_app.redaction.assigned_values import assigned_values
from sessions_app.redaction.encoded_text import base64_view, decoded, has_escapes, in_base64

_COLOURS: Final = re.compile(r"\x1b\[[0-9;:]*m")
"""ANSI colours, which are removed; other terminal sequences are made visible."""
_LINE_ENDS: Final = re.compile(r"\r\n?")
_NAMES: Final[Mapping[int, str]] = {
    0x00AD: "SHY",
    0x034F: "CGJ",
    0x061C: "ALM",
    0x180E: "MVS",
    0x200B: "ZWSP",
    0x200E: "LRM",
    0x200F: "RLM",
    0x2028: "LS",
    0x2029: "PS",
    0x202A: "LRE",
    0x202B: "RLE",
    0x202C: "PDF",
    0x202D: "LRO",
    0x202E: "RLO",
    0x2060: "WJ",
    0x2066: "LRI",
    0x2067: "RLI",
    0x2068: "FSI",
    0x2069: "PDI",
    0xFEFF: "BOM",
}
"""Usual names of invisible characters and of those that change the text direction."""
_UNNAMED: Final = (
    *(0x115F, 0x1160, 0x17B4, 0x17B5, 0x3164, 0xFFA0),  # letters without a shape
    *range(0x180B, 0x180E),
    *range(0x2061, 0x2066),
    *range(0x206A, 0x2070),
    *range(0xFE00, 0xFE0E),
    *range(0xFFF9, 0xFFFC),
    *range(0x13430, 0x13440),
    *range(0x1BCA0, 0x1BCA4),
    *range(0x1D173, 0x1D17B),
    *range(0xE0000, 0xE01F0),
)
"""Invisible characters that are shown by their number."""
_REPLACEMENTS: Final[dict[int, str]] = {
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n"},
    0x7F: "\u2421",
    **{code: f"⟦{code:02X}⟧" for code in range(0x80, 0xA0)},
    **{code: f"⟦{name}⟧" for code, name in _NAMES.items()},
    **{code: f"⟦{code:X}⟧" for code in _UNNAMED},
}
_JOINED: Final = "\u0600-\u0dff\u0f00-\u109f\u1780-\u180a\u2190-\u2bff\ufe0f\U0001f000-\U0001faff"
"""Scripts whose spelling needs joiners, and pictures that are joined of several."""
_PICTURED: Final = "0-9#*\u00a9\u00ae\u203c-\u3299\U0001f000-\U0001faff"
"""Characters that have a form as text and one as picture."""
_STRAY: Final[Mapping[str, re.Pattern[str]]] = {
    "\u200c": re.compile(f"(?<![{_JOINED}])\u200c|\u200c(?![{_JOINED}])"),
    "\u200d": re.compile(f"(?<![{_JOINED}])\u200d|\u200d(?![{_JOINED}])"),
    "\ufe0e": re.compile(f"(?<![{_PICTURED}])\ufe0e"),
    "\ufe0f": re.compile(f"(?<![{_PICTURED}])\ufe0f"),
}
"""Joiners and variation selectors where no writing needs them."""
_STRAY_NAMES: Final = {"\u200c": "⟦ZWNJ⟧", "\u200d": "⟦ZWJ⟧", "\ufe0e": "⟦VS15⟧", "\ufe0f": "⟦VS16⟧"}


def _character_ranges(codes: Iterable[int]) -> str:
    """Return these characters as ranges of a regular expression, which are found much faster than single characters."""
    ranges: list[list[int]] = []
    for code in sorted(codes):
        if ranges and code == ranges[-1][1] + 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "".join(f"{re.escape(chr(first))}-{re.escape(chr(last))}" for first, last in ranges)


_BLANK_CODES: Final = (*range(0x20), *range(0x7F, 0xA0), *_NAMES, *_UNNAMED, *map(ord, _STRAY), 0x2800)
_VISIBLE: Final = re.compile(rf"[^\s{_character_ranges(_BLANK_CODES)}]")


def is_blank(text: str) -> bool:
    """Whether a text has nothing to read: only spaces, controls and invisible characters."""
    return _VISIBLE.search(text) is None


_PLAIN_BYTES: Final = bytes([*b"\t\n", *range(0x20, 0x7F)])
_CODES: Final = (*_REPLACEMENTS, 0x200C, 0x200D, 0xFE0E, 0xFE0F)
_INVISIBLE: Final = re.compile(f"[{_character_ranges(_CODES)}]")

_JSON_ESCAPES: Final[Mapping[str, str]] = {chr(code): json.dumps(chr(code))[1:-1] for code in _CODES}


MAX_MARKS: Final = 30
"""Combining characters in a row that are shown. No language needs as many (``wire.normalization``), and browsers take
the square of their number to draw them: a message of 100,000 freezes every page that shows it."""
_SYMBOLS: Final = re.compile(rf"[^\w\s\x00-\u02ff]{{{MAX_MARKS + 1},}}+")
"""Long runs of what is neither word nor space; those of combining characters are among them."""


def _limit_marks(text: str) -> str:
    """Replace the combining characters in a row that are too many by their number."""
    return _SYMBOLS.sub(lambda found: _marks_counted(found[0]), text)


def _marks_counted(symbols: str) -> str:
    parts = []
    for is_mark, group in groupby(symbols, _is_mark):
        run = "".join(group)
        excess = len(run) - MAX_MARKS if is_mark else 0
        parts.append(f"{run[:MAX_MARKS]}⟦+{excess} marks⟧" if excess > 0 else run)
    return "".join(parts)


def _is_mark(character: str) -> bool:
    return unicodedata.category(character) in _MARKS


_MARKS: Final = frozenset({"Mn", "Mc", "Me", "Cf"})


def _has_invisible(text: str) -> bool:
    """Whether any character would be made visible; a fast test, because every page passes it."""
    unusual = text.encode("utf-8", "surrogatepass").translate(None, _PLAIN_BYTES).decode("utf-8", "surrogatepass")
    return bool(unusual) and bool(_INVISIBLE.search(unusual) or _SYMBOLS.search(unusual))


def make_visible(text: str) -> str:
    """Normalize line ends, remove colours, and make every other invisible character visible.

    ``rm ⟦RLO⟧fdp.exe`` then cannot pass for another file name. Ordinary text is returned unchanged, also that of
    scripts that need joiners. Of more combining characters in a row than any script needs, the rest is counted.
    """
    if not _has_invisible(text):
        return text
    shown = _LINE_ENDS.sub("\n", _COLOURS.sub("", text)).translate(_REPLACEMENTS)
    for character, stray in _STRAY.items():
        if character in shown:
            shown = stray.sub(_STRAY_NAMES[character], shown)
    return _limit_marks(shown)


def refer_to_invisible(html: str) -> str:
    """Return HTML with every invisible character as a character reference: the same text, not made visible again."""
    return _SYMBOLS.sub(lambda found: _references(found[0]), _INVISIBLE.sub(lambda found: _references(found[0]), html))


def _references(text: str) -> str:
    return "".join(f"&#x{ord(character):X};" for character in text)


def escape_invisible(json_text: str) -> str:
    """Return JSON with every invisible character as an escape: the same value, safe to print on a terminal."""
    return _INVISIBLE.sub(lambda found: _JSON_ESCAPES[found[0]], json_text)


def parse_uuid(text: str) -> uuid.UUID | None:
    """Return the UUID in a text; None for any other text."""
    try:
        return uuid.UUID(text)
    except ValueError:
        return None


def parse_number(text: str, digits: int = 18) -> int | None:
    """Return the whole number in a text of at most ``digits`` ASCII digits; None for any other text."""
    if text.isascii() and text.isdigit() and len(text) <= digits:
        return int(text)
    return None


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
_WORD: Final = re.compile(r"[\w+/=.~%\\-]*+", re.ASCII)
"""A word that may be a key or a part of one."""
CONTEXT: Final = 1000
"""Characters before and behind a part of a text that are searched too."""
CUT_WORD: Final = 200
"""Characters beside a cut that are left out if they may belong to a key. Of a longer key, so much is missing that
nobody can guess it; and an agent cannot hide the end of its command by one long word."""
_MIN_NAMED_LENGTH: Final = 5
"""A name and its value have at least so many characters, as in ``pwd=x``."""


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
    searched, values = text[first:last], _long_enough(known)
    spans = list(_merge(_find_secrets(searched, values)))
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
    lengths = (
        length
        for value in values
        for length in range(min(len(value) - 1, len(text)), MIN_SECRET_LENGTH - 1, -1)
        if text.endswith(value[:length])
    )
    return len(text) - max(lengths, default=0)


def _long_enough(known: Iterable[str]) -> set[str]:
    return {value for value in known if len(value) >= MIN_SECRET_LENGTH}


def _replace(text: str, spans: Iterable[tuple[int, int]], begin: int, end: int) -> tuple[str, int]:
    parts: list[str] = []
    count = 0
    for start, stop in spans:
        if stop > begin and start < end:
            parts += (text[begin:start], REDACTION_MARK)
            count += 1
            begin = max(begin, stop)
    return "".join([*parts, text[begin:end]]), count


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


def _find_secrets(text: str, values: Iterable[str]) -> Iterator[tuple[int, int]]:
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
    group = "secret" if "secret" in rule.groupindex else 0
    rest = range(0)
    for match in rule.finditer(text):
        start, stop = match.span(group)
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
    yield from _find_values(text, {form for value in values for form in _plain_forms(value)})
    view = base64_view(text)
    for start, stop in _find_values(view.text, {form for value in values for form in in_base64(value)}):
        yield view.original(start, stop)


def _plain_forms(value: str) -> Iterator[str]:
    """Yield a value as it is, without escapes, and with the spaces of a form in an address."""
    for form in (value, value.replace(" ", "+")):
        yield form
        if has_escapes(form) and len(plain := decoded(form).text) >= MIN_SECRET_LENGTH:
            yield plain


def _find_values(text: str, values: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each of these values in a text.

    Their number makes no difference: they are looked up by their beginning.
    """
    by_beginning = defaultdict(list)
    for value in values:
        by_beginning[value[:MIN_SECRET_LENGTH]].append(value)
    for start in range(len(text) - MIN_SECRET_LENGTH + 1 if by_beginning else 0):
        for value in by_beginning.get(text[start : start + MIN_SECRET_LENGTH], ()):
            if text.startswith(value, start):
                yield start, start + len(value)


def _named_spans(line: str, find_secrets: Callable[[str], Iterable[str]]) -> Iterator[tuple[int, int]]:
    """Yield begin and end of what its variable name, or its entropy, shows to be a secret."""
    value = range(0)
    """Where the value that continued behind a window was last seen to end, so that its rest is read only once."""
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
    return range(begin, (rest.end() if rest else begin) + 1)

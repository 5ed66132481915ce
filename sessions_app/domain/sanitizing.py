"""Read ids and numbers in foreign text, and make it safe to show and to pass on: visible controls, redacted secrets."""

from __future__ import annotations

import json
import re
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from executors_app.machine.costly_work import begin_costly_work

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


def _has_invisible(text: str) -> bool:
    """Whether any character would be made visible; a fast test, because every page passes it."""
    unusual = text.encode("utf-8", "surrogatepass").translate(None, _PLAIN_BYTES)
    return bool(unusual) and _INVISIBLE.search(unusual.decode("utf-8", "surrogatepass")) is not None


def make_visible(text: str) -> str:
    """Normalize line ends, remove colours, and make every other invisible character visible.

    ``rm ⟦RLO⟧fdp.exe`` then cannot pass for another file name. Ordinary text is returned unchanged, also that of
    scripts that need joiners.
    """
    if not _has_invisible(text):
        return text
    shown = _LINE_ENDS.sub("\n", _COLOURS.sub("", text)).translate(_REPLACEMENTS)
    for character, stray in _STRAY.items():
        if character in shown:
            shown = stray.sub(_STRAY_NAMES[character], shown)
    return shown


def refer_to_invisible(html: str) -> str:
    """Return HTML with every invisible character as a character reference: the same text, not made visible again."""
    return _INVISIBLE.sub(lambda found: f"&#x{ord(found[0]):X};", html)


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
    return int(text) if text.isascii() and text.isdigit() and len(text) <= digits else None


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
_MIN_NAMED_LENGTH: Final = 5
"""A name and its value have at least so many characters, as in ``pwd=x``."""


def redact(text: str, known: Iterable[str] = ()) -> tuple[str, int]:
    """Replace each secret in ``text`` by ``REDACTION_MARK``; return the text and the number of replacements.

    ``known`` contains secrets by value. The time is proportional to the length of the text, whatever it contains: 2 to
    3 µs of processor time for each character of ordinary text, and 9 µs at most.
    """
    begin_costly_work("a search for secrets")
    # Imported at the first use, because loading detect-secrets is slow (about 0.15 s).
    from sessions_app.domain import secret_rules  # noqa: PLC0415

    text, count = _redact_known_values(text, known)
    for rule in secret_rules.RULES:
        text, found = _redact_matches(text, rule)
        count += found
    lines = [_redact_line(line, secret_rules.find_named_secrets) for line in text.splitlines(keepends=True)]
    return "".join(line for line, _ in lines), count + sum(found for _, found in lines)


def _redact_known_values(text: str, known: Iterable[str]) -> tuple[str, int]:
    """Redact the known values; where some of them overlap, all of their characters at once.

    The number of values makes no difference: they are looked up by their beginning.
    """
    by_beginning = defaultdict(list)
    for value in set(known):
        if len(value) >= MIN_SECRET_LENGTH:
            by_beginning[value[:MIN_SECRET_LENGTH]].append(value)
    parts: list[str] = []
    count = end = 0
    for start in range(len(text) - MIN_SECRET_LENGTH + 1 if by_beginning else 0):
        candidates = by_beginning.get(text[start : start + MIN_SECRET_LENGTH], ())
        lengths = [len(value) for value in candidates if text.startswith(value, start)]
        if not lengths:
            continue
        if start >= end:
            parts += (text[end:start], REDACTION_MARK)
            count += 1
        end = max(end, start + max(lengths))
    return "".join([*parts, text[end:]]), count


def _redact_matches(text: str, rule: re.Pattern[str]) -> tuple[str, int]:
    """Redact the matches of a rule, except those of its group ``skipped``."""
    count = 0

    def replace(match: re.Match[str]) -> str:
        nonlocal count
        if match.lastgroup == "skipped":
            return match[0]
        count += 1
        return REDACTION_MARK

    return rule.sub(replace, text), count


def _redact_line(line: str, find_secrets: Callable[[str], Iterable[str]]) -> tuple[str, int]:
    """Redact what its variable name, or its entropy, shows to be a secret."""
    parts: list[str] = []
    count = end = 0
    for start, stop in sorted(_secret_spans(line, find_secrets)):
        if start >= end:
            parts += (line[end:start], REDACTION_MARK)
            count += 1
        end = max(end, stop)
    return "".join([*parts, line[end:]]), count


def _secret_spans(line: str, find_secrets: Callable[[str], Iterable[str]]) -> Iterator[tuple[int, int]]:
    """Yield start and end of each secret in a line; secrets may overlap, and be found twice."""
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

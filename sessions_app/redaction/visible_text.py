"""Make characters visible that are invisible, control a terminal or change the direction of text."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Final

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
_MARKS: Final = frozenset({"Mn", "Mc", "Me", "Cf"})
_SYMBOLS: Final = re.compile(rf"[^\w\s\x00-\u02ff]{{{MAX_MARKS + 1},}}+")
"""Long runs of what is neither word nor space; those of combining characters are among them."""


def _limit_marks(text: str) -> str:
    """Replace the combining characters in a row that are too many by their number."""
    return _SYMBOLS.sub(lambda found: _count_excess_marks(found[0]), text)


def _count_excess_marks(symbols: str) -> str:
    parts = []
    for is_mark, group in groupby(symbols, _is_mark):
        run = "".join(group)
        excess = len(run) - MAX_MARKS
        if is_mark and excess > 0:
            run = f"{run[:MAX_MARKS]}⟦+{excess} marks⟧"
        parts.append(run)
    return "".join(parts)


def _is_mark(character: str) -> bool:
    return unicodedata.category(character) in _MARKS


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

"""Make foreign text safe to show and to pass on: visible control characters, redacted secrets."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

_COLOURS: Final = re.compile(r"\x1b\[[0-9;:]*m")
"""ANSI's colours say nothing; every other sequence of a terminal is shown."""
_LINE_ENDS: Final = re.compile(r"\r\n?")
_NAMES: Final[Mapping[int, str]] = {
    0x061C: "ALM",
    0x200B: "ZWSP",
    0x200E: "LRM",
    0x200F: "RLM",
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
"""What turns the direction of a line, and what cannot be seen, by its usual name."""
_REPLACEMENTS: Final[dict[int, str]] = {
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n"},
    0x7F: "\u2421",
    **{code: f"⟦{code:02X}⟧" for code in range(0x80, 0xA0)},
    **{code: f"⟦{name}⟧" for code, name in _NAMES.items()},
    **{code: f"⟦{code:X}⟧" for code in range(0xE0000, 0xE0080)},
}
_INVISIBLE: Final = re.compile(f"[{re.escape(''.join(map(chr, _REPLACEMENTS)))}]")


def make_visible(text: str) -> str:
    """The text with plain line ends, without colours, and with every other invisible sign shown.

    ``rm ⟦RLO⟧fdp.exe`` cannot be taken for what it is not; ordinary text comes out as it is.
    """
    if not _INVISIBLE.search(text):
        return text
    return _LINE_ENDS.sub("\n", _COLOURS.sub("", text)).translate(_REPLACEMENTS)


REDACTION_MARK: Final = "[REDACTED]"
MIN_SECRET_LENGTH: Final = 8
"""A known value of fewer characters is taken for a word."""
_PIECE: Final = re.compile(r".{1,400}(?:\s|$)|.{1,400}", re.DOTALL)
"""What the keyword rules look at at once: their time grows with the cube of a line's length."""


def redact(text: str, known: Iterable[str] = ()) -> tuple[str, int]:
    """``text`` with each secret replaced by ``MARK``, and how many were; ``known`` are secrets by value."""
    from sessions_app.domain import secret_rules  # noqa: PLC0415

    count = 0
    for value in sorted({value for value in known if len(value) >= MIN_SECRET_LENGTH}, key=len, reverse=True):
        count += text.count(value)
        text = text.replace(value, REDACTION_MARK)
    for rule in secret_rules.RULES:
        text, found = rule.subn(REDACTION_MARK, text)
        count += found
    given_away = secret_rules.find_named_secrets
    pieces = [
        _redact_piece(piece, given_away) for line in text.splitlines(keepends=True) for piece in _PIECE.findall(line)
    ]
    return "".join(piece for piece, _ in pieces), count + sum(found for _, found in pieces)


def _redact_piece(line: str, given_away: Callable[[str], Iterable[str]]) -> tuple[str, int]:
    """What a name, or its entropy, gives away."""
    count = 0
    for secret in sorted(set(given_away(line.rstrip("\r\n"))), key=len, reverse=True):
        if secret not in REDACTION_MARK:
            count += line.count(secret)
            line = line.replace(secret, REDACTION_MARK)
    return line, count

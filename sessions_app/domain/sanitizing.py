"""Read ids and numbers in foreign text, and make it safe to show and to pass on: visible controls, redacted secrets."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Final

_COLOURS: Final = re.compile(r"\x1b\[[0-9;:]*m")
"""ANSI colours, which are removed; other terminal sequences are made visible."""
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
"""Usual names of invisible characters and of those that change the text direction."""
_REPLACEMENTS: Final[dict[int, str]] = {
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n"},
    0x7F: "\u2421",
    **{code: f"⟦{code:02X}⟧" for code in range(0x80, 0xA0)},
    **{code: f"⟦{name}⟧" for code, name in _NAMES.items()},
    **{code: f"⟦{code:X}⟧" for code in range(0xE0000, 0xE0080)},
}
_INVISIBLE: Final = re.compile(f"[{re.escape(''.join(map(chr, _REPLACEMENTS)))}]")


def make_visible(text: str) -> str:
    """Normalize line ends, remove colours, and make every other invisible character visible.

    ``rm ⟦RLO⟧fdp.exe`` then cannot pass for another file name. Ordinary text is returned unchanged.
    """
    if not _INVISIBLE.search(text):
        return text
    return _LINE_ENDS.sub("\n", _COLOURS.sub("", text)).translate(_REPLACEMENTS)


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
"""Text that the keyword rules see at once. It is short because their running time grows with the cube of its length."""


def redact(text: str, known: Iterable[str] = ()) -> tuple[str, int]:
    """Replace each secret in ``text`` by ``REDACTION_MARK``; return the text and the number of replacements.

    ``known`` contains secrets by value.
    """
    # Imported at the first use, because loading detect-secrets is slow (about 0.15 s).
    from sessions_app.domain import secret_rules  # noqa: PLC0415

    count = 0
    for value in sorted({value for value in known if len(value) >= MIN_SECRET_LENGTH}, key=len, reverse=True):
        count += text.count(value)
        # Longest first: a value that is part of another one would otherwise leave the rest of it readable.
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
    """Redact what its variable name, or its entropy, shows to be a secret."""
    count = 0
    for secret in sorted(set(given_away(line.rstrip("\r\n"))), key=len, reverse=True):
        if secret not in REDACTION_MARK:
            count += line.count(secret)
            line = line.replace(secret, REDACTION_MARK)
    return line, count

"""Secrets out of what another agent is told: by the rules of detect-secrets, and by values that are known.

The rules come in with the first text: that takes longer than a third of Django does, and few processes have one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

MARK: Final = "[REDACTED]"
SHORTEST: Final = 8
"""A known value of fewer characters is taken for a word."""
_PIECE: Final = re.compile(r".{1,400}(?:\s|$)|.{1,400}", re.DOTALL)
"""What the keyword rules look at at once: their time grows with the cube of a line's length."""


def redact(text: str, known: Iterable[str] = ()) -> tuple[str, int]:
    """``text`` with each secret replaced by ``MARK``, and how many were; ``known`` are secrets by value."""
    from sessions_app.domain import secret_rules  # noqa: PLC0415

    count = 0
    for value in sorted({value for value in known if len(value) >= SHORTEST}, key=len, reverse=True):
        count += text.count(value)
        text = text.replace(value, MARK)
    for rule in secret_rules.RULES:
        text, found = rule.subn(MARK, text)
        count += found
    given_away = secret_rules.given_away
    pieces = [
        _redacted_piece(piece, given_away) for line in text.splitlines(keepends=True) for piece in _PIECE.findall(line)
    ]
    return "".join(piece for piece, _ in pieces), count + sum(found for _, found in pieces)


def _redacted_piece(line: str, given_away: Callable[[str], Iterable[str]]) -> tuple[str, int]:
    """What a name, or its entropy, gives away."""
    count = 0
    for secret in sorted(set(given_away(line.rstrip("\r\n"))), key=len, reverse=True):
        if secret not in MARK:
            count += line.count(secret)
            line = line.replace(secret, MARK)
    return line, count

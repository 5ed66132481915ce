"""Sentences with numbers in them."""

from __future__ import annotations


def plural(number: int, one: str, many: str) -> str:
    """Return ``one`` for 1, otherwise ``many`` with the number filled in."""
    return one if number == 1 else many.format(number)

"""Numbers, sentences and times as text."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime


def plural(number: int, one: str, many: str) -> str:
    """Return ``one`` for 1, otherwise ``many`` with the number filled in."""
    if number == 1:
        return one
    return many.format(number)


def join_alternatives(words: Iterable[str]) -> str:
    """Return words as ``a, b or c``."""
    *others, last = words
    if not others:
        return last
    return f"{', '.join(others)} or {last}"


def describe_exit(exit_code: object) -> str:
    """Return how a process ended; a negative code is the signal that ended it, anything but a number is unknown."""
    if not isinstance(exit_code, int):
        return "exit code unknown"
    if exit_code < 0:
        return f"signal {-exit_code}"
    return f"exit code {exit_code}"


def as_sentence(text: str) -> str:
    """Return a text with a capital letter and a full stop, so that another sentence can follow; empty stays empty."""
    text = text.strip()
    if not text:
        return ""
    end = "."
    if text.endswith((".", "!", "?", "…")):
        end = ""
    return f"{text[0].upper()}{text[1:]}{end}"


def iso_time(moment: datetime | None) -> str | None:
    """Return a time as programs get it; None stays None."""
    if moment is None:
        return None
    return moment.isoformat()

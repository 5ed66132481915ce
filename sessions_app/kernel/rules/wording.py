"""Numbers, sentences and times as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final

_LEAST_MONEY: Final = 0.0001


def plural(number: float, one: str, many: str) -> str:
    """Return ``one`` for 1, otherwise ``many`` with the number filled in."""
    if number == 1:
        return one
    return many.format(number)


def describe_uses(uses: Mapping[str, int]) -> str:
    """Return the numbers that are not 0, as “2 sessions, 1 workflow”."""
    words = {name: name.replace("_", " ") for name in uses}
    return ", ".join(plural(n, f"1 {words[name][:-1]}", f"{{}} {words[name]}") for name, n in uses.items() if n)


def count_text(number: int, unit: str) -> str:
    """Return a number with its unit, such as *1 token* or *1,234 tokens*; ``unit`` is the singular."""
    return plural(number, f"1 {unit}", f"{{:,}} {unit}s")


def money_text(amount: float, currency: str) -> str:
    """Return an amount with its currency, such as *0.50 USD*, exact to a hundredth of a cent."""
    if 0 < amount < _LEAST_MONEY:
        return f"less than {_LEAST_MONEY} {currency}"
    whole, _, decimals = f"{amount:,.4f}".partition(".")
    return f"{whole}.{decimals.rstrip('0').ljust(2, '0')} {currency}"


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

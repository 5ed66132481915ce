"""Random values: JSON of any shape, and our own words where they do not belong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

BOUNDED: Final = settings(
    max_examples=60,
    derandomize=True,
    deadline=None,
    database=None,
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)
"""The same examples in every run, without a deadline."""
FEW: Final = settings(BOUNDED, max_examples=15)
"""For tests that write each example to a database."""

ODD_TEXTS: Final = ("", "\0", "\ud800", "\u202e", "../..", "a\nb", "${HOME}", "'\"`$(x)", "1e999", "x" * 5000)
ODD_NUMBERS: Final = (-1, 0, 2**31, 2**63, -(2**63) - 1, 10**30, 0.5, True)


def text(*words: str) -> st.SearchStrategy[str]:
    """Return a strategy for some of ``words``, unusual text, or any text."""
    return st.sampled_from([*words, *ODD_TEXTS]) | st.text(max_size=20)


def value(*words: str) -> st.SearchStrategy[Any]:
    """Return a strategy for JSON of any shape that contains such words."""
    leaf = st.none() | st.sampled_from(ODD_NUMBERS) | st.floats() | text(*words)
    return st.recursive(
        leaf,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text(*words), inner, max_size=4),
        max_leaves=6,
    )


def record(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy for objects with some of these fields, each valid or any value."""
    anything = value(*fields)
    return st.fixed_dictionaries({}, optional={name: one | anything for name, one in fields.items()})


def mostly(good: st.SearchStrategy[Any], bad: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return a strategy that draws ``good`` three times out of four."""
    choose: Callable[[int], st.SearchStrategy[Any]] = lambda number: bad if number == 0 else good  # noqa: E731
    return st.integers(0, 3).flatmap(choose)

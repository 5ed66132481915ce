"""Values such as nobody means: JSON of any shape, and our own words in places where they do not belong."""

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
"""The same examples in every run, and as long as they take."""
FEW: Final = settings(BOUNDED, max_examples=15)
"""Where each example is written to a database."""

ODD_TEXTS: Final = ("", "\0", "\ud800", "\u202e", "../..", "a\nb", "${HOME}", "'\"`$(x)", "1e999", "x" * 5000)
ODD_NUMBERS: Final = (-1, 0, 2**31, 2**63, -(2**63) - 1, 10**30, 0.5, True)


def text(*words: str) -> st.SearchStrategy[str]:
    """Some of ``words``, something odd, or anything."""
    return st.sampled_from([*words, *ODD_TEXTS]) | st.text(max_size=20)


def value(*words: str) -> st.SearchStrategy[Any]:
    """JSON of any shape that holds such words."""
    leaf = st.none() | st.sampled_from(ODD_NUMBERS) | st.floats() | text(*words)
    return st.recursive(
        leaf,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text(*words), inner, max_size=4),
        max_leaves=6,
    )


def record(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """An object with some of these fields; each as it should be, or anything at all."""
    anything = value(*fields)
    return st.fixed_dictionaries({}, optional={name: one | anything for name, one in fields.items()})


def mostly(good: st.SearchStrategy[Any], bad: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Three of four are good."""
    choose: Callable[[int], st.SearchStrategy[Any]] = lambda number: bad if number == 0 else good  # noqa: E731
    return st.integers(0, 3).flatmap(choose)

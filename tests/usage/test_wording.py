"""Usage in words never calls unknown figures zero."""

from __future__ import annotations

import pytest

from sessions_app.usage.rules.figures import Usage
from sessions_app.usage.rules.wording import summary_text, usage_summary


@pytest.mark.parametrize(
    ("usage", "text"),
    [
        (Usage(), "0 tokens in 0 turns"),
        (Usage(1, 0, 0, 1, costs=(("USD", 0.4),)), "1 token, 0.40 USD in 1 turn"),
        (Usage(2, 1, 2, 12345), "12,345 tokens in 2 turns (1 turn without tokens)"),
        (
            Usage(3, 1, 2, 5, costs=(("USD", 1.0),)),
            "5 tokens, 1.00 USD in 3 turns (1 turn without tokens, 2 turns without a cost)",
        ),
        (Usage(2, 2, 2), "Not reported in 2 turns"),
        (Usage(2, 2, 0, costs=(("EUR", 0.001), ("USD", 1234))), "Not reported, 0.001 EUR, 1,234.00 USD in 2 turns"),
        (Usage(1, 0, 0, 0, costs=(("USD", 0.0),)), "0 tokens, 0.00 USD in 1 turn"),
    ],
)
def test_summary_says_what_is_known_and_what_is_not(usage: Usage, text: str) -> None:
    assert summary_text(usage) == text


def test_many_currencies_are_counted() -> None:
    costs = tuple((f"AA{letter}", 1.0) for letter in "ABCDEFG")
    text = summary_text(Usage(7, 7, 0, costs=costs))
    assert text.endswith("1.00 AAE, 2 other currencies in 7 turns")
    assert "AAF" not in text


def test_nothing_is_said_before_the_first_turn_has_ended() -> None:
    assert usage_summary(Usage()) == ""
    assert usage_summary(Usage(1, 1, 1)) == summary_text(Usage(1, 1, 1))

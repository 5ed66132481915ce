"""Text and figures of agents, as users see them."""

from __future__ import annotations

from typing import Any

import pytest

from sessions_app.domain.sanitizing import make_visible
from sessions_app.domain.usage import parse_usage, usage_lines


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("Zoë 日本 👩‍💻 مرحبا", "Zoë 日本 👩‍💻 مرحبا"),
        ("one\r\ntwo\rthree", "one\ntwo\nthree"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b[2J\x1b]0;t\x07", "␛[2J␛]0;t␇"),
        ("\0\x08\x7f\x9b", "␀␈␡⟦9B⟧"),
        ("a\u202eb\u202cc\u2066d\u2069", "a⟦RLO⟧b⟦PDF⟧c⟦LRI⟧d⟦PDI⟧"),
        ("zero\u200bwidth\ufeff", "zero⟦ZWSP⟧width⟦BOM⟧"),
        ("hidden \U000e0041", "hidden ⟦E0041⟧"),
    ],
)
def test_invisible_characters_are_shown(text: str, shown: str) -> None:
    assert make_visible(text) == shown
    assert make_visible(shown) == shown


@pytest.mark.parametrize(
    ("told", "figures", "words"),
    [
        (
            {"inputTokens": 1200, "outputTokens": 34, "totalTokens": 1234},
            {"input_tokens": 1200, "output_tokens": 34, "total_tokens": 1234},
            [("Tokens in", "1,200"), ("Tokens out", "34")],
        ),
        (
            {"input_tokens": 5, "cache_read_input_tokens": 4, "total_cost_usd": 0.0123},
            {"input_tokens": 5, "cached_tokens": 4, "cost": 0.0123, "currency": "USD"},
            [("Tokens in", "5"), ("Of these from a cache", "4"), ("Cost", "0.01 USD")],
        ),
        ({"prompt_tokens": 3, "completion_tokens": 2}, {"input_tokens": 3, "output_tokens": 2}, None),
        ({"total_tokens": 9}, {"total_tokens": 9}, [("Tokens", "9")]),
        (
            {"used": 50, "size": 200, "cost": {"amount": 2, "currency": "EUR"}},
            {"context_used": 50, "context_size": 200, "cost": 2.0, "currency": "EUR"},
            [("Context in use", "25% of 200 tokens"), ("Cost", "2.00 EUR")],
        ),
        ({"used": "many", "input_tokens": -1, "output_tokens": True, "size": 10**40, "cost": 3}, {}, []),
        ({}, {}, []),
    ],
)
def test_usage_of_every_agent_is_normalised(
    told: dict[str, Any], figures: dict[str, Any], words: list[tuple[str, str]] | None
) -> None:
    assert parse_usage(told) == figures
    if words is not None:
        assert usage_lines(figures) == words

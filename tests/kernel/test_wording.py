"""Sentences that pages build from numbers and from the words of programs."""

from __future__ import annotations

import pytest

from sessions_app.kernel.rules.wording import as_sentence, count_text, describe_exit, join_alternatives, money_text


@pytest.mark.parametrize(
    ("code", "words"), [(0, "exit code 0"), (3, "exit code 3"), (-9, "signal 9"), (None, "exit code unknown")]
)
def test_end_of_a_process_names_its_code_or_its_signal(code: object, words: str) -> None:
    assert describe_exit(code) == words


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("the agent ended with code 7: boom", "The agent ended with code 7: boom."),
        ("The disk is full.", "The disk is full."),
        ("cut short…", "Cut short…"),
        ("`codex` is missing", "`codex` is missing."),
        (" ", ""),
    ],
)
def test_words_of_a_program_become_a_sentence(text: str, sentence: str) -> None:
    assert as_sentence(text) == sentence


@pytest.mark.parametrize(("words", "text"), [(["a"], "a"), (["a", "b"], "a or b"), (["a", "b", "c"], "a, b or c")])
def test_alternatives_are_joined_with_commas_and_or(words: list[str], text: str) -> None:
    assert join_alternatives(words) == text


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 tokens"), (1, "1 token"), (2, "2 tokens"), (12345, "12,345 tokens")]
)
def test_number_agrees_with_its_unit(number: int, text: str) -> None:
    assert count_text(number, "token") == text


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0.00 USD"),
        (0.5, "0.50 USD"),
        (0.005, "0.005 USD"),
        (0.0001, "0.0001 USD"),
        (0.00001, "less than 0.0001 USD"),
        (1234.5678, "1,234.5678 USD"),
        (10.0**9, "1,000,000,000.00 USD"),
    ],
)
def test_small_amount_is_not_shown_as_nothing(amount: float, text: str) -> None:
    assert money_text(amount, "USD") == text

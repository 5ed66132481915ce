"""Quotations are bounded when they are stored, searched for secrets when they are shown, and left out otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from sessions_app.attention.rules.quotations import (
    LEFT_OUT,
    PLACEHOLDER,
    Quotation,
    encode_quotations,
    fill_in,
    quote,
    quote_ends,
    quote_json,
    quote_lines,
    shorten,
    show_quotations,
    text,
)
from tests.entrances.shapes import SIZES, nested
from tests.growth import measure_growth

SECRET = "hunter2-horse-staple"
STORED_LIMIT = 1_000
"""Characters of one stored quotation."""


@pytest.mark.parametrize("quotes", [quote, quote_ends], ids=["beginning", "both ends"])
def test_no_part_of_a_secret_is_quoted_wherever_it_begins(quotes: Callable[[str], Quotation]) -> None:
    words = "w " * 300
    for offset in range(600):
        assert "hunter2" not in quotes(f"{words[:offset]} password={SECRET} {words[offset:]}").show(), offset


def test_no_part_of_a_token_is_quoted_where_the_beginning_ends() -> None:
    token = "ghp_0123456789abcdefABCDEF0123456789abcd"
    for offset in range(60, 110):
        assert "ghp_" not in quote_ends(f"{'w ' * (offset // 2)}{token} {'w ' * 300}").show(), offset


def test_quotation_of_a_longer_text_ends_with_a_mark_after_a_secret_too() -> None:
    assert quote(f"password={'x' * 150} {'w ' * 300}").show() == "password=[REDACTED]…"


@pytest.mark.parametrize("quotes", [quote, quote_ends, shorten], ids=["beginning", "both ends", "without search"])
def test_invisible_characters_are_shown_on_one_line(quotes: Callable[[str], Any]) -> None:
    quoted = quotes("rm \u202efdp.exe\n" * 100)
    shown = quoted.show() if isinstance(quoted, Quotation) else quoted
    assert "⟦RLO⟧" in shown
    assert not {"\u202e", "\n"} & set(shown)


def test_known_secrets_are_removed() -> None:
    assert quote("the word is open-sesame").show(["open-sesame"]) == "the word is [REDACTED]"


def test_blank_text_is_no_quotation() -> None:
    assert not quote(" \n\0 ")
    assert quote("a")


@pytest.mark.parametrize(
    "value",
    [
        {},
        [],
        None,
        1,
        1.5,
        True,
        "a",
        'ä\u202e"\\',
        {"a": 1, "b": [1, "x", {"c": None}], "ä": {}},
        [[], [[]], {"": ""}],
    ],
    ids=repr,
)
def test_json_of_a_short_value_is_quoted_whole(value: Any) -> None:
    assert quote_json(value) == quote(json.dumps(value, ensure_ascii=False))


@pytest.mark.parametrize(
    "value",
    [
        {"command": "a" * 20_000, "then": "b" * 20_000},
        {f"key {number}": [number, {"x": "y"}] for number in range(3_000)},
        [{"a" * 12_000: 1}, ["b"] * 10, {"c" * 12_000: []}],
        "x" * 50_000,
    ],
    ids=["long texts", "many members", "long names", "text"],
)
def test_ends_of_a_large_values_json_are_quoted(value: Any) -> None:
    whole = json.dumps(value, ensure_ascii=False)
    quoted = quote_json(value)
    assert (whole[:100], whole[-100:]) == (quoted.begin[:100], quoted.end[-100:])
    assert quoted.gap == "more than 9800 characters left out"


def deep_list(size: int) -> Any:
    value: Any = []
    for _ in range(size):
        value = [value]
    return value


@pytest.mark.parametrize(
    "make",
    [
        lambda size: {"a": "x" * size},
        lambda size: {str(number): number for number in range(size // 8)},
        lambda size: [1] * size,
        deep_list,
        nested,
    ],
    ids=["text", "members", "elements", "depth", "nested"],
)
def test_quoting_json_costs_the_same_whatever_its_size(make: Callable[[int], Any]) -> None:
    for size in SIZES:
        quoted = quote_json(make(size))
        assert len(json.dumps(quoted.begin + quoted.end + quoted.gap)) < STORED_LIMIT
    measure_growth(quote_json, make, sizes=SIZES).assert_bounded(budget=0.5)


@pytest.mark.parametrize("quotes", [quote, quote_ends, quote_json])
def test_stored_quotation_is_bounded(quotes: Callable[[str], Quotation]) -> None:
    assert len(quotes("word " * 100_000).begin + quotes("word " * 100_000).end) < STORED_LIMIT


def test_last_lines_are_quoted_as_they_are() -> None:
    assert quote_lines("a\nb\0\nc", 4).show() == "b\nc"


def sentence() -> dict[str, Any]:
    return {"what": "Plain", "why": text("It says […]: ", quote("one"), " and ", text(quote("two"), "."))}


def test_sentence_is_stored_without_its_quotations() -> None:
    assert str(sentence()["why"]) == f"It says […]: {PLACEHOLDER} and {PLACEHOLDER}."
    assert encode_quotations({"what": "Plain", "why": text("Nothing.")}) == ""


def test_quotations_are_put_into_their_places_alone() -> None:
    texts, quoted = sentence(), encode_quotations(sentence())
    stored = {name: str(words) for name, words in texts.items()}
    assert show_quotations(quoted, []) == ["one", "two"]
    assert fill_in(stored, quoted, ["[…]", "2"]) == {"why": "It says […]: […] and 2."}
    assert fill_in(stored, quoted, None) == {"why": f"It says […]: {LEFT_OUT} and {LEFT_OUT}."}


def test_text_of_another_release_is_kept() -> None:
    quoted = encode_quotations(sentence())
    assert fill_in({"why": "It says: three."}, quoted, ["one", "two"]) == {"why": "It says: three."}


def test_no_part_of_a_key_beside_a_cut_is_quoted() -> None:
    key, words = "ghp_1234567890abcdefghij1234567890abcdef", "w " * 600
    for length in range(60, 460, 3):
        before, behind = f"{words[:length]} {key} {words}", f"{words} {key} {words[:length]}"
        for shown in (quote(before).show(), quote_ends(before).show(), quote_ends(behind).show()):
            assert "abcdef" not in shown
            assert "123456" not in shown
    text = f"{key} {words}"
    for limit in range(len(text) - len(key), len(text)):
        assert "abcdef" not in quote_lines(text, limit).show()


def test_line_of_a_log_that_is_cut_is_not_quoted() -> None:
    lines = "words and more\n" * 20
    log = f"password = 'correct horse battery staple {'x ' * 20}'\n{lines}"
    for limit in range(len(log) - 60, len(log)):
        assert "battery" not in quote_lines(log, limit).show()

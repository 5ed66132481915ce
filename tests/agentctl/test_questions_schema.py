"""The questions that agents may ask, and which answers are valid; the tables follow ACP 1.7."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executors_app.wire.questions import check_answer, choices_of, fields_of, recorded_answer
from executors_app.wire.questions.schema import check_url, parse_question

TITLED = [{"const": "a", "title": "First", "description": "the first"}, {"const": "b", "title": "Second"}]


def form(properties: Any, **more: Any) -> dict[str, Any]:
    return {"mode": "form", "message": "?", "requestedSchema": {"type": "object", "properties": properties, **more}}


def problem(field: dict[str, Any], value: Any) -> str:
    found = check_answer(parse_question(form({"x": field})), {"x": value})
    return found["x"].code if found else ""


@pytest.mark.parametrize(
    ("field", "valid", "invalid"),
    [
        ({"type": "string"}, ["", "é"], [(1, "wrong_type"), (None, "wrong_type"), ("\0", "wrong_type")]),
        ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab"], [("a", "too_short"), ("abcd", "too_long")]),
        ({"type": "string"}, ["x" * 20_000], [("x" * 20_001, "too_long")]),
        ({"type": "string", "format": "email"}, ["a@b.org"], [("a@", "bad_format"), ("a b@c", "bad_format")]),
        ({"type": "string", "format": "uri"}, ["https://a/b"], [("a", "bad_format"), ("https://a b", "bad_format")]),
        ({"type": "string", "format": "date"}, ["2026-12-31"], [("2026-W01-1", "bad_format"), ("x", "bad_format")]),
        ({"type": "string", "format": "date-time"}, ["2026-12-31T12:00:00Z"], [("2026-12-31T12:00:00", "bad_format")]),
        ({"type": "string", "enum": ["a", "b"]}, ["a"], [("c", "not_offered")]),
        ({"type": "string", "oneOf": TITLED}, ["b"], [("First", "not_offered")]),
        ({"type": "number", "minimum": 0.5, "maximum": 2}, [0.5, 1], [(0, "too_small"), (2.5, "too_large")]),
        (
            {"type": "number"},
            [1e300 / 1e290],
            [(True, "wrong_type"), (float("nan"), "wrong_type"), ("1", "wrong_type")],
        ),
        (
            {"type": "integer", "minimum": -1},
            [-1, 2.0],
            [(1.5, "wrong_type"), (-2, "too_small"), (2**70, "wrong_type")],
        ),
        ({"type": "boolean"}, [True, False], [(1, "wrong_type"), ("true", "wrong_type")]),
        (
            {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}, "minItems": 1, "maxItems": 1},
            [["a"]],
            [([], "too_few"), (["a", "b"], "too_many"), (["c"], "not_offered"), ("a", "wrong_type")],
        ),
        ({"type": "array", "items": {"anyOf": TITLED}}, [["a", "b"], []], [(["a", "a"], "not_offered")]),
    ],
)
def test_answers_are_checked_by_the_kind_of_field(
    field: dict[str, Any], valid: list[Any], invalid: list[tuple[Any, str]]
) -> None:
    assert [problem(field, value) for value in valid] == [""] * len(valid)
    assert [problem(field, value) for value, _ in invalid] == [code for _, code in invalid]


def test_required_and_unknown_fields_are_named() -> None:
    question = parse_question(form({"a": {"type": "string"}, "b": {"type": "boolean"}}, required=["a"]))
    found = check_answer(question, {"c": 1})
    assert {name: one.code for name, one in found.items()} == {"a": "required", "c": "unknown_field"}


@pytest.mark.parametrize(
    "properties",
    [
        [],
        {"x": {"type": "object"}},
        {"x": {"type": ["string", "null"]}},
        {"x": {"type": "string", "format": "color"}},
        {"x": {"type": "string", "pattern": 5}},
        {"x": {"type": "string", "pattern": "a" * 501}},
        {"x": {"type": "string", "minLength": 3, "maxLength": 2}},
        {"x": {"type": "string", "minLength": -1}},
        {"x": {"type": "string", "enum": []}},
        {"x": {"type": "string", "enum": ["a", "a"]}},
        {"x": {"type": "string", "enum": [str(number) for number in range(201)]}},
        {"x": {"type": "string", "oneOf": [{"const": "a"}]}},
        {"x": {"type": "number", "minimum": "1"}},
        {"x": {"type": "number", "minimum": float("inf")}},
        {"x": {"type": "array"}},
        {"x": {"type": "array", "items": {"type": "string"}}},
        {"x": {"type": "array", "items": {"type": "integer", "enum": ["1"]}}},
        {"x\0": {"type": "string"}},
        {"x" * 201: {"type": "string"}},
        {"x": {"type": "string", "title": "t" * 4001}},
        {str(number): {"type": "string"} for number in range(51)},
        {str(number): {"type": "string", "title": "t" * 4000} for number in range(50)},
    ],
)
def test_schemas_that_cannot_be_shown_are_refused(properties: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_question(form(properties))


@pytest.mark.parametrize("required", [["y"], "x", [1], [["x"]]])
def test_required_names_must_be_fields(required: Any) -> None:
    with pytest.raises(ValueError, match="required"):
        parse_question(form({"x": {"type": "string"}}, required=required))


def test_order_choices_and_valid_defaults_are_kept_and_the_rest_is_dropped() -> None:
    fields = {
        "z": {"type": "string", "oneOf": TITLED, "default": "b", "_meta": {"preview": "x"}, "enum": None},
        "a": {"type": "integer", "minimum": 1, "default": 0, "exclusiveMinimum": 5},
    }
    question = parse_question(form(fields, _meta={"secret": 1}, required=None))
    assert question["order"] == ["z", "a"]
    z, a = fields_of(question).values()
    assert [(choice.value, choice.label, choice.description) for choice in choices_of(z)] == [
        ("a", "First", "the first"),
        ("b", "Second", ""),
    ]
    assert (z["default"], a) == ("b", {"type": "integer", "minimum": 1})
    assert "_meta" not in str(question)


def test_only_choices_and_booleans_are_recorded() -> None:
    fields = {
        "engine": {"type": "string", "enum": ["a"]},
        "password": {"type": "string"},
        "pin": {"type": "integer"},
        "sure": {"type": "boolean"},
    }
    answer = {"engine": "a", "password": "s3cret", "pin": 1234, "sure": True}
    assert recorded_answer(parse_question(form(fields)), answer) == {"engine": "a", "sure": True}


@pytest.mark.parametrize(
    ("url", "host"), [("https://example.org/a?b=c", "example.org"), ("http://127.0.0.1:8080/", "127.0.0.1")]
)
def test_link_host_is_extracted(url: str, host: str) -> None:
    assert check_url(url) == host


@pytest.mark.parametrize(
    "url",
    [
        "",
        "javascript:alert(1)",
        "file:///etc/passwd",
        "https://",
        "//example.org",
        "https://user:word@example.org/",
        "https://example.org\\@evil.org",
        "https://example.org/ x",
        "https://exämple.org/",
        "https://example.org:port/",
        "https://example.org/\n",
    ],
)
def test_unsafe_links_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        check_url(url)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
SCHEMA_WORDS = st.sampled_from(["string", "number", "integer", "boolean", "array", "object", "email"])
FIELDS = st.dictionaries(
    st.sampled_from(
        ["type", "enum", "oneOf", "items", "minimum", "maxLength", "pattern", "format", "default", "title"]
    ),
    SCHEMA_WORDS | JSON_VALUES,
)


@given(st.dictionaries(st.text(max_size=4), FIELDS | JSON_VALUES, max_size=4), JSON_VALUES, JSON_VALUES)
def test_any_input_is_a_question_or_a_value_error(properties: Any, required: Any, answer: Any) -> None:
    try:
        question = parse_question(form(properties, required=required))
    except ValueError:
        return
    check_answer(question, answer if isinstance(answer, dict) else dict.fromkeys(properties, answer))

"""Reading workflow texts: limits, hostile texts, line numbers, YAML and JSON."""

from __future__ import annotations

import json

import pytest
import yaml

from sessions_app.workflows.language.diagnostics import InvalidWorkflow
from sessions_app.workflows.language.limits import MAX_BYTES
from sessions_app.workflows.language.reader import read_text
from tests.growth import assert_costs_at_most

BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
HOSTILE = {
    "alias bomb": (BOMB, "too_many", 6),
    "alias within itself": ("a: &a [*a]", "alias", 1),
    "undefined alias": ("a: *b", "alias", 1),
    "python object": ("a: 1\nb: !!python/object/apply:os.system ['true']", "tag", 2),
    "own tag": ("a: !thing {}", "tag", 1),
    "binary tag": ("a: !!binary aGk=", "tag", 1),
    "tag directives": ("".join(f"%TAG !{at}! x\n" for at in range(20_000)) + "---\na: 1", "tag", 0),
    "merge": ("a: &a {x: 1}\nb:\n  <<: *a", "merge", 3),
    "duplicate key": ("a: 1\nb: 2\na: 3", "duplicate_key", 3),
    "key that is not text": ("? [a]\n: 1", "key", 1),
    "deep YAML": ("a: " + "[" * 500 + "]" * 500, "too_deep", 1),
    "deep JSON": ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "too_deep", 0),
    "fairly deep JSON": ('{"a": ' + "[" * 200 + "]" * 200 + "}", "too_deep", 0),
    "duplicate key in JSON": ('{"a": 1, "a": 2}', "syntax", 0),
    "not a number": ('{"a": NaN}', "syntax", 0),
    "huge number": ('{"a": 1e400}', "number", 0),
    "half a surrogate pair": ('{"a": "\\ud800"}', "not_text", 0),
    "zero byte": ('a: "x\\0y"', "not_text", 1),
    "zero byte in JSON": ('{"a": "x\\u0000"}', "not_text", 0),
    "control characters": ("a: \x01", "syntax", 0),
    "not UTF-8": (b"a: 1\nb: \xff", "not_text", 2),
    "two documents": ("a: 1\n---\nb: 2", "syntax", 2),
    "invalid YAML": ("a: [1\nb: 2", "syntax", 2),
    "invalid JSON": ('{"a": 1,\n "b" 2}', "syntax", 2),
    "too large": ("#" * (MAX_BYTES + 1), "too_large", 0),
}


@pytest.mark.parametrize(("text", "code", "line"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_text_is_refused_quickly(text: str | bytes, code: str, line: int) -> None:
    def refuse() -> None:
        with pytest.raises(InvalidWorkflow):
            read_text(text, "w.yaml")

    assert_costs_at_most(5, refuse)
    with pytest.raises(InvalidWorkflow) as refused:
        read_text(text, "w.yaml")
    (problem,) = refused.value.problems
    assert (problem.code, problem.file) in {(code, "w.yaml"), ("not_text" if code == "syntax" else code, "w.yaml")}
    assert problem.line == line or (code == "syntax" and abs(problem.line - line) <= 1)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", 42),
        ("-3.5", -3.5),
        ("1e3", 1000.0),
        ("true", True),
        ("null", None),
        ("~", None),
        ("", None),
        ("yes", "yes"),
        ("on", "on"),
        ("y", "y"),
        ("0x10", "0x10"),
        ("2026-01-01", "2026-01-01"),
        ("'42'", "42"),
        ('"true"', "true"),
        ("!!str 42", "42"),
        ("99999999999999999999", 99999999999999999999.0),
    ],
)
def test_scalars_follow_yaml_1_2(text: str, value: object) -> None:
    found = read_text(f"a: {text}", "w.yaml").data["a"]
    assert (found, type(found)) == (value, type(value))


def test_aliases_are_read_and_keys_are_words() -> None:
    source = read_text("a: &a {x: 1, y: 2}\nb: *a\ntrue: 3", "w.yaml")
    assert source.data == {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 2}, "true": 3}


def test_every_value_has_its_line() -> None:
    source = read_text("a: 1\nb:\n  - x: 1\n  - y: |\n      long\n      text\n", "w.yaml")
    assert [source.line_of(place) for place in ((), ("a",), ("b", 0), ("b", 1, "y"), ("b", 1, "z"))] == [1, 1, 3, 4, 4]


@pytest.mark.parametrize("indent", [None, 2, "\t"])
def test_json_is_read_with_its_lines(indent: int | str | None) -> None:
    data = {"a": {"é": "\U0001f600 tab\t", "list": [1, 2.5, None, True]}, "long" * 300: "/"}
    text = json.dumps(data, indent=indent)

    source = read_text(text, "w.json")

    assert source.data == data
    assert source.line_of(("a", "list", 1)) == (
        6 if indent and len("long" * 300) < 1000 else source.line_of(("a", "list", 1))
    )


def test_multi_line_json_has_line_numbers() -> None:
    assert read_text('{\n\t"a": {\n\t\t"b": "\\ud83d\\ude00"\n\t}\n}', "w.json").line_of(("a", "b")) == 3


def test_yaml_flow_mapping_may_also_begin_with_a_brace() -> None:
    assert read_text("{a: 1, b: [x, y]}", "w.yaml").data == {"a": 1, "b": ["x", "y"]}


def test_pure_python_parser_reads_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "a: 1\nb: 'x'\nc: |\n  y\nd: &d [1, ~]\ne: *d\n"
    fast = read_text(text, "w.yaml")
    monkeypatch.setattr("sessions_app.workflows.language.reader._PARSER", yaml.SafeLoader)
    assert read_text(text, "w.yaml") == fast

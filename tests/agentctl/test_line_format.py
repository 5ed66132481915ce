"""Anything an agent sends becomes one valid journal line."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from executors_app.wire.line_format import encode_line

_SELF: list[Any] = []
_SELF += [_SELF, _SELF]

ODD_VALUES: list[tuple[str, Any, Any]] = [
    ("not a number", float("nan"), None),
    ("infinity", float("-inf"), None),
    ("lone surrogate", "a\ud800b", "a\ufffdb"),
    ("surrogate pair", "\ud83d\ude00", "😀"),
    ("U+0000", "a\0b", "a\ufffdb"),
    ("U+0000 in a key", {"a\0": 1}, {"a\ufffd": 1}),
    ("an escape that only looks like U+0000", "\\u0000", "\\u0000"),
    ("beyond 64 bits", [2**70], ["0x400000000000000000"]),
    ("beyond what decimal text may have", -(2**20000), hex(-(2**20000))),
    ("keys that are no text", {1: {None: 2.5}, ("\ud800",): 3}, {"1": {"null": 2.5}, '["�"]': 3}),
    ("bytes", b"\xffok", "\ufffdok"),
    ("a set", {1}, [1]),
    ("an object", object(), "<object>"),
    ("contains itself", _SELF, ["…", "…"]),
]


@pytest.mark.parametrize(("value", "stored"), [case[1:] for case in ODD_VALUES], ids=[case[0] for case in ODD_VALUES])
def test_unusual_values_are_stored_as_plain_json(value: Any, stored: Any) -> None:
    line = encode_line(1, "e", 1.0, "log", {"data": value})

    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert b"\\u0000" not in line.replace(b"\\\\", b"")
    assert orjson.loads(line)["data"] == stored


def test_excessive_nesting_is_cut() -> None:
    deep: Any = "bottom"
    for _ in range(5000):
        deep = [deep]

    line = encode_line(1, "e", 1.0, "log", {"data": deep})

    assert orjson.loads(line)["seq"] == 1
    assert len(line) < 500


def test_body_cannot_override_the_line_header() -> None:
    line = orjson.loads(encode_line(7, "real", 1.0, "log", {"seq": 1, "epoch": "false", "kind": "turn.completed"}))

    assert (line["seq"], line["epoch"], line["kind"]) == (7, "real", "log")

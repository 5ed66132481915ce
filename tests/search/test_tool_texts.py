"""The text of a tool call in the index reads like the conversation, whatever its agent sent."""

from __future__ import annotations

import json

import pytest

from sessions_app.search.rules.tool_texts import COMMAND_LIMIT, tool_text

LONG = json.dumps(["bash", "-lc", "cat <<END\n" + "\u2013" * COMMAND_LIMIT])


@pytest.mark.parametrize(
    ("title", "kind", "command", "raw_input", "expected"),
    [
        ("Run tests", "execute", "make green", "{}", "Run tests\n$ make green"),
        ("`make green`", "execute", "make green", "{}", "$ make green"),
        ("", "", "make", "", "$ make"),
        ("Build", "", '["bash", "-lc", "ls | wc -l"]', "", "Build\n$ ls | wc -l"),
        ("Build", "", '["grep", "a b", "x"]', "", "Build\n$ grep 'a b' x"),
        ("Run", "execute", "", "make all", "Run\n$ make all"),
        ("Read", "read", "", "make all", "Read"),
        ("Run", "execute", "", '{"script": "x"}', "Run"),
        ("Test", "", '["$a" = b ] && ls', "", 'Test\n$ ["$a" = b ] && ls'),
        ("Odd", "", '["ls", {"a": "zebra"}]', "", 'Odd\n$ ["ls", {"a": "zebra"}]'),
        ("Deep", "", '["' + "[" * 3_000, "", 'Deep\n$ ["' + "[" * 3_000),
        ("Half", "", '["a\\ud800"]', "", "Half\n$ 'a?'"),
        ("", "", "", "", ""),
    ],
)
def test_command_is_indexed_as_it_is_typed(title: str, kind: str, command: str, raw_input: str, expected: str) -> None:
    assert tool_text(title, kind, command, raw_input) == expected


@pytest.mark.parametrize("cut", range(COMMAND_LIMIT, COMMAND_LIMIT + 6))
def test_command_that_is_cut_is_indexed_as_it_is_typed(cut: int) -> None:
    text = tool_text("Write", "execute", LONG[:cut], "")
    assert text.startswith("Write\n$ cat <<END\n\u2013\u2013")
    assert text.rstrip("\u2013") == "Write\n$ cat <<END\n"

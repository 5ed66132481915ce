"""Paths are found by a few letters of them, the likely ones first, whatever files are called."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from executors_app.wire.path_search import MAX_FOUND, MAX_PATH, PathIndex

PATHS = (
    "README.md",
    "docs/mail.md",
    "src/mail/module_03.py",
    "src/mail/module_13.py",
    "src/Main.py",
    "src/module/x.py",
)


def found(paths: Sequence[str | bytes], query: str) -> list[str]:
    fields = [path if isinstance(path, bytes) else path.encode() for path in paths]
    return [entry["path"] for entry in PathIndex.from_listing(fields, truncated=False).search(query)["entries"]]


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("module_03", "src/mail/module_03.py"),
        ("mod3", "src/mail/module_03.py"),
        ("MAIN", "src/Main.py"),
        ("mail/13", "src/mail/module_13.py"),
        ("mail md", "docs/mail.md"),
        ("smm03", "src/mail/module_03.py"),
        ("mod", "src/module/"),
        ("read", "README.md"),
    ],
)
def test_a_few_letters_find_a_path(query: str, first: str) -> None:
    assert found(PATHS, query)[0] == first


@pytest.mark.parametrize("query", ["zebra", "30_eludom", "x" * 1000])
def test_other_letters_find_nothing(query: str) -> None:
    assert found(PATHS, query) == []


def test_directories_are_found_once_and_end_with_a_slash() -> None:
    assert found(PATHS, "src").count("src/") == 1
    index = PathIndex.from_listing([b"a/b/c", b"a/b/d"], truncated=False)
    assert {entry["path"]: entry["type"] for entry in index.search("")["entries"]} == {
        "a/": "directory",
        "a/b/": "directory",
        "a/b/c": "file",
        "a/b/d": "file",
    }


def test_names_that_cannot_be_typed_as_shown_are_not_found() -> None:
    hostile: list[str | bytes] = ["a\u202eb", "a\nb", "a\x1b[2J", "a\u200bb", b"a\xff", "a" * (MAX_PATH + 1)]
    assert found([*hostile, "a b", "a/<b>"], "a") == ["a/", "a b", "a/<b>"]


def test_answer_is_limited_and_says_what_was_not_searched() -> None:
    fields = [f"file{number}".encode() for number in range(200)]
    answer = PathIndex.from_listing(fields, truncated=False, limit=100).search("file")
    assert len(answer["entries"]) == MAX_FOUND
    assert answer["truncated"]
    assert not PathIndex.from_listing(fields, truncated=False).search("file")["truncated"]

"""Versions of a file are compared whole, and every change is shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions_app.workspace.rules.file_diffs import COMPARED_LINES, FileDiff, compare_files

LONG = "".join(f"entry {number:05d}\n" for number in range(3 * COMPARED_LINES))
CASES = [
    ("end of a long file", LONG, LONG.replace("entry 05999", "CHANGED"), ["-entry 05999", "+CHANGED"]),
    (
        "both ends of a long file",
        LONG,
        LONG.replace("entry 00001", "FIRST").replace("entry 05990", "LAST"),
        ["-entry 00001", "+FIRST", "-entry 05990", "+LAST"],
    ),
    ("line ends", "a\r\nb\r\n", "a\nb\r\n", ["-a␍", "+a"]),
    ("a separator that is no line feed", "a\x0cb\n", "a\u2028b\n", ["-a\x0cb", "+a\u2028b"]),
    ("white space", "a\n", "a \n", ["-a", "+a "]),
    ("the final line end", "a\n", "a", ["-a", "+a", "\\ No newline at end of file"]),
    ("a new file", "", "a\nb\n", ["+a", "+b"]),
    ("an emptied file", "a\n", "", ["-a"]),
]


def changed(diff: FileDiff) -> list[str]:
    return [text for kind, text in diff.lines if kind in ("added", "gone")]


@pytest.mark.parametrize(("what", "old", "new", "expected"), CASES, ids=[case[0] for case in CASES])
def test_every_change_is_shown(what: str, old: str, new: str, expected: list[str]) -> None:
    assert changed(compare_files(old, new)) == expected


def test_equal_files_have_no_lines() -> None:
    assert compare_files(LONG, LONG) == FileDiff([], 0, 0)


def test_equal_parts_of_a_long_line_are_left_out() -> None:
    old, new = "x" * 50_000 + "SAFE" + "y" * 50_000, "x" * 50_000 + "EVIL" + "y" * 50_000
    gone, added = (text for text in changed(compare_files(f"{old}\n", f"{new}\n")))
    assert "SAFE" in gone
    assert "EVIL" in added
    assert "equal characters" in added
    assert len(added) < 1000


def test_files_without_common_lines_are_shown_whole() -> None:
    old = "".join(f"a{number}\n" for number in range(COMPARED_LINES + 1))
    new = "".join(f"b{number}\n" for number in range(COMPARED_LINES + 2))
    diff = compare_files(old, new)
    assert (diff.gone, diff.added) == (COMPARED_LINES + 1, COMPARED_LINES + 2)
    assert len(changed(diff)) == diff.gone + diff.added


@given(
    old=st.lists(st.sampled_from("abc"), max_size=12).map("\n".join),
    new=st.lists(st.sampled_from("abc"), max_size=12).map("\n".join),
)
def test_different_texts_always_differ_in_lines(old: str, new: str) -> None:
    assert bool(compare_files(old, new).lines) == (old != new)


@given(data=st.data())
def test_changes_turn_the_old_version_into_the_new_one(data: st.DataObject) -> None:
    lines = st.lists(st.sampled_from("abcdefgh"), max_size=30).map(lambda found: "".join(f"{one}\n" for one in found))
    old, new = data.draw(lines), data.draw(lines)
    diff = compare_files(old, new)
    balance = len(new.splitlines()) - len(old.splitlines())
    assert diff.added - diff.gone == balance
    assert len([kind for kind, _ in diff.lines if kind == "added"]) == diff.added

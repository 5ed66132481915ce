"""What the page of a branch's changes says in words."""

from __future__ import annotations

from typing import Any

import pytest

from sessions_app.review.rules import wording

FILE = {
    "change": "modified",
    "content": "text",
    "old_mode": "100644",
    "new_mode": "100644",
    "additions": 1,
    "deletions": 1,
    "size": None,
    "uncommitted": False,
}


@pytest.mark.parametrize(
    ("ahead", "behind", "sentence"),
    [
        (0, 0, "The branch is at the same commit as main."),
        (1, 0, "The branch is 1 commit ahead of main."),
        (0, 2, "The branch is 2 commits behind main."),
        (2, 1, "The branch is 2 commits ahead of main and 1 commit behind it."),
        (None, None, "How far the branch and main are apart is not known."),
    ],
)
def test_distance_is_said_in_words(ahead: int | None, behind: int | None, sentence: str) -> None:
    assert wording.distance_sentence("main", ahead, behind) == sentence


@pytest.mark.parametrize(
    ("values", "words", "sentences"),
    [
        ({}, "modified", []),
        ({"uncommitted": True}, "modified, not committed", []),
        ({"change": "renamed", "additions": 0, "deletions": 0}, "renamed", ["Its content is the same."]),
        ({"change": "added", "old_mode": "", "additions": 0, "deletions": 0}, "added", ["It is empty."]),
        (
            {"change": "mode_only", "old_mode": "100755", "additions": 0, "deletions": 0},
            "mode only",
            ["It can no longer be executed."],
        ),
        ({"change": "deleted", "new_mode": ""}, "deleted", []),
        ({"change": "type_changed", "new_mode": "120000", "content": "symlink"}, "of another type", ["A symbolic"]),
        ({"change": "line_ends_only"}, "line ends only", ["Only the ends of its lines differ"]),
        ({"change": "conflicted"}, "in conflict", ["Compared with this branch's own side"]),
        ({"content": "large", "size": 1, "additions": None}, "modified", ["A large file of 1 byte:"]),
        ({"content": "binary", "additions": None}, "modified", ["A binary file: it has no lines"]),
        (
            {"change": "conflicted", "conflict": "deleted_by_us", "additions": None},
            "in conflict",
            ["This branch has deleted it, and the other side has changed it."],
        ),
        ({"content": "submodule"}, "modified", ["A submodule: it points to another"]),
        (
            {"content": "submodule", "commits": {"old": "a" * 40, "new": ""}},
            "modified",
            ["A submodule: it pointed to commit aaaaaaaa, and now points to the commit that its line names."],
        ),
        ({"content": "submodule", "commits": {"old": None, "new": "b"}}, "modified", ["A submodule, which points to"]),
        ({"content": "submodule", "commits": {"old": "b", "new": None}}, "modified", ["It was a submodule, which"]),
        ({"content": "repository", "additions": None}, "modified", ["A repository of its own"]),
    ],
)
def test_each_change_is_explained(values: dict[str, Any], words: str, sentences: list[str]) -> None:
    file = {**FILE, **values}
    assert wording.change_words(file) == words
    found = wording.explanations(file)
    assert [one[: len(start)] for one, start in zip(found, sentences, strict=True)] == sentences


@pytest.mark.parametrize(
    ("problem", "sentences"),
    [
        ("", ["1 file changed since main: +2 −1", "The branch is 1 commit ahead of main."]),
        ("no_base", ["1 file not committed: +2 −1", "The base of this branch is not known"]),
        ("not_found", ["1 file not committed: +2 −1", "The base main was not found"]),
    ],
)
def test_branch_is_described_with_what_it_is_compared_with(problem: str, sentences: list[str]) -> None:
    found = {
        "part": {"kind": "branch", "id": "", "problem": ""},
        "base": {"name": "main", "problem": problem},
        "count": 1,
        "additions": 2,
        "deletions": 1,
        "upstream": None,
        "truncated": False,
        "ahead": None if problem else 1,
        "behind": None if problem else 0,
    }
    described = wording.branch_sentences(found)
    assert [one[: len(start)] for one, start in zip(described, sentences, strict=True)] == sentences

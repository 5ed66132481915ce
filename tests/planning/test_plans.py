"""Priorities and labels: which are allowed, and how they are compared."""

from __future__ import annotations

import pytest

from sessions_app.planning.rules.plans import Priority, clean_labels, parse_priority, split_labels


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("", []),
        (" , ,", []),
        ("bug", ["bug"]),
        ("bug, parser ", ["bug", "parser"]),
        ("needs  two   words", ["needs two words"]),
        ("Bug, bug, BUG", ["Bug"]),
        ("Straße, STRASSE", ["Straße"]),
    ],
)
def test_labels_of_a_text(text: str, labels: list[str]) -> None:
    assert split_labels(text) == labels


@pytest.mark.parametrize(
    ("labels", "why"),
    [
        ([str(number) for number in range(11)], "A task has at most 10 labels."),
        (["x" * 41], "A label has at most 40 characters."),
        (["a,b"], "A label has no comma."),
    ],
)
def test_labels_that_are_not_allowed(labels: list[str], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        clean_labels(labels)


@pytest.mark.parametrize(
    ("word", "priority"), [("urgent", Priority.URGENT), ("none", Priority.NONE), ("x", None), ("", None)]
)
def test_priority_by_its_name(word: str, priority: Priority | None) -> None:
    assert parse_priority(word) is priority

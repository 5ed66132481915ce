"""Tool calls of a sub-agent are steps of the call that started it, within one turn."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pytest

from sessions_app.stream.rules.nesting import MAX_DEPTH, Entry, find_parents, parent_key

IDS = [uuid.UUID(int=number) for number in range(20)]

PROMPT = ("prompt", "")


def parents_of(calls: Sequence[tuple[str, str]]) -> list[int | None]:
    """Return the place of the call that each of ``calls`` belongs to; each is its id and that of its call."""
    entries = [
        Entry(key, is_prompt=True) if call == PROMPT else Entry(key, key=call[0], parent_key=call[1])
        for key, call in zip(IDS, calls, strict=False)
    ]
    found = find_parents(entries)
    return [IDS.index(found[entry.id]) if entry.id in found else None for entry in entries]


@pytest.mark.parametrize(
    ("calls", "parents"),
    [
        ([("a", ""), ("b", "a"), ("c", "a")], [None, 0, 0]),
        ([("a", ""), ("b", ""), ("c", "b"), ("d", "a")], [None, None, 1, 0]),
        ([("a", "gone"), ("b", "a")], [None, 0]),
        ([("a", "a"), ("a", "a")], [None, 0]),
        ([("b", "a"), ("a", "b")], [None, 0]),
        ([("a", ""), PROMPT, ("b", "a")], [None, None, None]),
        ([("a", ""), ("a", ""), ("b", "a")], [None, None, 1]),
    ],
    ids=["steps", "two sub-agents", "unknown call", "names itself", "names a later one", "other turn", "id used again"],
)
def test_step_belongs_to_the_newest_earlier_call_of_its_turn(
    calls: list[tuple[str, str]], parents: list[int | None]
) -> None:
    assert parents_of(calls) == parents


def test_depth_is_bounded() -> None:
    chain = [("0", ""), *((str(number), str(number - 1)) for number in range(1, 10))]
    assert parents_of(chain) == [None, *(min(number - 1, MAX_DEPTH - 1) for number in range(1, 10))]


@pytest.mark.parametrize(
    ("payload", "key"),
    [
        ({}, ""),
        ({"parent_tool_call_id": "t1"}, "t1"),
        ({"parent_tool_call_id": "t1", "sub_agent": "Sub-agent 1"}, "Sub-agent 1\x1ft1"),
    ],
)
def test_call_is_named_among_those_of_the_same_agent(payload: dict[str, str], key: str) -> None:
    assert parent_key(payload) == key

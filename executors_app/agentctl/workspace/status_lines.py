"""Reads ``git status --porcelain=v2 -z --branch``; no I/O."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

_MEANS: Final = {
    "M": "modified",
    "T": "type_changed",
    "A": "added",
    "D": "deleted",
    "R": "renamed",
    "C": "copied",
}
_INITIAL: Final = "(initial)"
_DETACHED: Final = "(detached)"


def parse_status(fields: list[bytes]) -> dict[str, Any]:
    """``{branch, head, clean, staged, unstaged: [{path, change, from}], untracked, conflicted: [path]}``.

    ``branch`` is null where none is checked out, ``head`` before the first commit.
    """
    found: dict[str, Any] = {"staged": [], "unstaged": [], "untracked": [], "conflicted": []}
    told: dict[str, str] = {}
    lines = (field.decode("utf-8", "replace") for field in fields)
    for line in lines:
        _sort_in(line, lines, found, told)
    branch, head = told.get("branch.head", _DETACHED), told.get("branch.oid", _INITIAL)
    return {
        "branch": None if branch == _DETACHED else branch,
        "head": None if head == _INITIAL else head,
        "clean": not any(found.values()),
        **found,
    }


def _sort_in(line: str, rest: Iterator[str], found: dict[str, Any], told: dict[str, str]) -> None:
    kind, _, body = line.partition(" ")
    match kind:
        case "#":
            name, _, value = body.partition(" ")
            told[name] = value
        case "1":
            _changed(body.split(" ", 7), "", found)
        case "2":
            _changed(body.split(" ", 8), next(rest, ""), found)
        case "u":
            found["conflicted"].append(body.split(" ", 9)[-1])
        case "?":
            found["untracked"].append(body)


def _changed(words: list[str], origin: str, found: dict[str, Any]) -> None:
    for side, letter in zip(("staged", "unstaged"), words[0], strict=True):
        if letter != ".":
            entry: dict[str, Any] = {"path": words[-1], "change": _MEANS.get(letter, letter)}
            if origin and letter in "RC":
                entry["from"] = origin
            found[side].append(entry)

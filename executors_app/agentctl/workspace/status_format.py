"""What ``git status`` is asked for the pages, and how its answer is read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final

STATUS: Final = ("status", "--porcelain=v2", "-z", "--branch", "--untracked-files=all", "--ignore-submodules=dirty")
"""Without a look into submodules, where git would apply all of their settings."""
_CHANGE_NAMES: Final = {
    "M": "modified",
    "T": "type_changed",
    "A": "added",
    "D": "deleted",
    "R": "renamed",
    "C": "copied",
}
_INITIAL: Final = "(initial)"
_DETACHED: Final = "(detached)"


def parse_git_status(fields: list[bytes], *, errors: str = "replace") -> dict[str, Any]:
    """Return ``{branch, head, clean, staged, unstaged: [{path, change, from}], untracked, conflicted: [path]}``.

    ``branch`` is null if none is checked out, ``head`` before the first commit. ``errors``: how names that are no
    UTF-8 are decoded; ``surrogateescape`` keeps them exact.
    """
    found: dict[str, Any] = {"staged": [], "unstaged": [], "untracked": [], "conflicted": []}
    headers: dict[str, str] = {}
    lines = (field.decode("utf-8", errors) for field in fields)
    for line in lines:
        _add_entry(line, lines, found, headers)
    return {
        "branch": _value_of(headers, "branch.head", none=_DETACHED),
        "head": _value_of(headers, "branch.oid", none=_INITIAL),
        "clean": not any(found.values()),
        **found,
    }


def parse_conflicts(fields: list[bytes]) -> dict[str, str]:
    """Return which sides of a merge have changed, added (``A``) or deleted (``D``) each file in conflict, ours first.

    Names are exact, as with ``surrogateescape``.
    """
    found = {}
    lines = (os.fsdecode(field) for field in fields)
    for line in lines:
        kind, _, body = line.partition(" ")
        if kind == "u":
            sides, *_, path = body.split(" ", 9)
            found[path] = sides
        elif kind == "2":
            next(lines, "")  # the old path, which may look like another line
    return found


def _value_of(headers: dict[str, str], name: str, *, none: str) -> str | None:
    value = headers.get(name, none)
    if value == none:
        return None
    return value


def _add_entry(line: str, rest: Iterator[str], found: dict[str, Any], headers: dict[str, str]) -> None:
    kind, _, body = line.partition(" ")
    match kind:
        case "#":
            name, _, value = body.partition(" ")
            headers[name] = value
        case "1":
            _changed(body.split(" ", 7), "", found)
        case "2":
            _changed(body.split(" ", 8), next(rest, ""), found)
        case "u":
            found["conflicted"].append(body.split(" ", 9)[-1])
        case "?":
            found["untracked"].append(body)


def _changed(fields: list[str], origin: str, found: dict[str, Any]) -> None:
    for side, letter in zip(("staged", "unstaged"), fields[0], strict=True):
        if letter != ".":
            entry: dict[str, Any] = {"path": fields[-1], "change": _CHANGE_NAMES.get(letter, letter)}
            if origin and letter in "RC":
                entry["from"] = origin
            found[side].append(entry)

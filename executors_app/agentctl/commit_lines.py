"""Asks ``git log`` for commits and reads what it says; no I/O, nothing but the standard library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

_FIELDS: Final = {
    "id": "%H",
    "parents": "%P",
    "author": "%an",
    "email": "%ae",
    "at": "%aI",
    "subject": "%s",
    "body": "%b",
}
_STEP: Final = len(_FIELDS) + 1
"""Fields of a commit: its own end is one without anything in it."""
_FORMAT: Final = f"--format=tformat:{'%x00'.join(_FIELDS.values())}%x00"


def log_words(limit: int, skip: int, start: str) -> tuple[str, ...]:
    """The words of the command for so many commits from the commit ``start`` back, behind the ``skip`` newest."""
    return ("log", "-z", "--no-color", f"--max-count={limit}", f"--skip={skip}", _FORMAT, start, "--")


def parse_log(fields: Sequence[bytes]) -> list[dict[str, Any]]:
    """``[{id, parents, author, email, at, subject, body}]`` of what the command has said, between its NULs."""
    texts = [field.decode("utf-8", "replace") for field in fields]
    return [_commit(texts[at : at + len(_FIELDS)]) for at in range(0, len(texts) - _STEP + 1, _STEP)]


def _commit(texts: Sequence[str]) -> dict[str, Any]:
    told = dict(zip(_FIELDS, texts, strict=True))
    cleaned = {"id": told["id"].strip(), "parents": told["parents"].split(), "body": told["body"].strip("\n")}
    return {**told, **cleaned}

"""Ask git for a log of commits, and parse its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

_COMMIT_FIELDS: Final = {
    "id": "%H",
    "parents": "%P",
    "author": "%an",
    "email": "%ae",
    "at": "%aI",
    "subject": "%s",
    "body": "%b",
}
_FIELDS_PER_COMMIT: Final = len(_COMMIT_FIELDS) + 1
"""Each commit ends with one empty field."""
_LOG_FORMAT: Final = f"--format=tformat:{'%x00'.join(_COMMIT_FIELDS.values())}%x00"


def git_log_arguments(limit: int, skip: int, start: str) -> tuple[str, ...]:
    """Return git's arguments for ``limit`` commits from ``start`` back, without the ``skip`` newest."""
    return ("log", "-z", "--no-color", f"--max-count={limit}", f"--skip={skip}", _LOG_FORMAT, start, "--")


def parse_git_log(fields: Sequence[bytes]) -> list[dict[str, Any]]:
    """Parse the NUL-separated fields of a log: ``[{id, parents, author, email, at, subject, body}]``."""
    texts = [field.decode("utf-8", "replace") for field in fields]
    return [
        _parse_commit(texts[at : at + len(_COMMIT_FIELDS)])
        for at in range(0, len(texts) - _FIELDS_PER_COMMIT + 1, _FIELDS_PER_COMMIT)
    ]


def _parse_commit(texts: Sequence[str]) -> dict[str, Any]:
    fields = dict(zip(_COMMIT_FIELDS, texts, strict=True))
    cleaned = {"id": fields["id"].strip(), "parents": fields["parents"].split(), "body": fields["body"].strip("\n")}
    return {**fields, **cleaned}


def count_commits(number: int) -> str:
    """Return a number of commits in words."""
    if number == 1:
        return "1 commit"
    return f"{number} commits"

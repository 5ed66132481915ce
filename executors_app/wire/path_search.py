"""Find paths by a few letters of them, as people type them: ``mod3`` finds ``src/mail/module_03.py``.

Pure. The work grows with the length of paths and query alone, because agents decide how files are named.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

MAX_FOUND: Final = 50
MAX_QUERY: Final = 64
"""Characters of a query."""
MAX_PATHS: Final = 50_000
"""Files that are searched; of more, the first."""
MAX_PATH: Final = 500
"""Characters of a path that is found."""
FILE, FOLDER = "file", "directory"
_Rank = tuple[int, int, int, str]


@dataclass(frozen=True, slots=True)
class PathIndex:
    """The paths of one listing, prepared for many searches."""

    entries: Sequence[tuple[str, str, str]] = ()
    """Each path, which ends with a slash for a directory; it in lower case; and the name at its end."""
    truncated: bool = False
    """Whether there are files that are not listed."""

    @classmethod
    def from_listing(cls, fields: Sequence[bytes], *, truncated: bool, limit: int = MAX_PATHS) -> PathIndex:
        """Index the files that git lists, and their directories. git may list a file several times.

        What a prompt could not name as it is shown is left out: control characters, and names that are not UTF-8.
        """
        paths: dict[str, None] = {}
        for field in islice(fields, limit):
            path = field.decode("utf-8", "replace")
            if len(path) <= MAX_PATH and path.isprintable() and "\ufffd" not in path:
                paths[path] = None
        entries = [(path, lower, _name_of(lower)) for path in _with_folders(paths) if (lower := path.lower())]
        return cls(entries, truncated or len(fields) > limit)

    def search(self, query: str) -> dict[str, Any]:
        """Return ``{query, entries: [{path, type}], truncated}``, the best first, at most ``MAX_FOUND``.

        A path is found if it has the letters of ``query`` in this order. Case is ignored, and so are spaces.
        """
        wanted = "".join(query[:MAX_QUERY].lower().split())
        found = [rank[-1] for rank in heapq.nsmallest(MAX_FOUND, self._ranks(wanted))]
        entries = [{"path": path, "type": FOLDER if path.endswith("/") else FILE} for path in found]
        return {"query": query, "entries": entries, "truncated": self.truncated}

    def _ranks(self, wanted: str) -> Iterator[_Rank]:
        for path, lower, name in self.entries:
            place = _place(lower, name, wanted)
            if place is not None:
                yield (*place, len(path), path)


def _name_of(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _with_folders(paths: Iterable[str]) -> Iterator[str]:
    known: set[str] = set()
    for path in paths:
        yield path
        end = path.rfind("/", 0, -1)
        while end > 0 and path[: end + 1] not in known:
            known.add(path[: end + 1])
            yield path[: end + 1]
            end = path.rfind("/", 0, end)


def _place(path: str, name: str, wanted: str) -> tuple[int, int] | None:
    """Return how well a path fits, smaller is better, and over how many characters; None: it does not fit."""
    if name.startswith(wanted):
        return 0, 0
    if wanted in name:
        return 1, name.index(wanted)
    if wanted in path:
        return 2, len(path) - path.rindex(wanted)
    if (span := _span(name, wanted)) is not None:
        return 3, span
    if (span := _span(path, wanted)) is not None:
        return 4, span
    return None


def _span(text: str, wanted: str) -> int | None:
    """Return over how many characters of a text the wanted ones are spread, as near to its end as possible."""
    end, last = len(text), 0
    for letter in reversed(wanted):
        end = text.rfind(letter, 0, end)
        if end < 0:
            return None
        last = last or end
    return last - end + 1

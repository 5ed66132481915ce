"""Collecting what is wrong with one file while it is read to its end."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

from pydantic import ValidationError

from sessions_app.workflows.limits import MAX_PROBLEMS
from sessions_app.workflows.problems import Problem, Severity
from sessions_app.workflows.reading import Place, Source

LONGEST: Final = 500
"""Characters of a message or fix; what they quote of the file can be of any length."""
_FIXES: Final = {
    "missing": "Add it.",
    "string_pattern_mismatch": "Use letters, digits, “_”, “-”, “.” and “:”.",
}


class Findings:
    """The problems of one file; each is told with the line of the place it is about."""

    def __init__(self, source: Source):
        self.source = source
        self.problems: list[Problem] = []
        self._counts = dict.fromkeys(Severity, 0)
        self._from_elsewhere = 0
        self.only_errors = False
        """Of a part that is not checked as a whole: what is hardly meant may come of what is missing."""

    @property
    def errors(self) -> int:
        """How many errors there are so far."""
        return self._counts[Severity.ERROR] + self._from_elsewhere

    def failed(self) -> bool:
        """Whether something keeps the workflow from being run."""
        return self.errors > 0

    def error(self, code: str, message: str, fix: str, place: Place, node: str = "", *, below: int = 0) -> None:
        """Something that keeps the workflow from being run; ``below`` counts lines within a text."""
        self._add(Severity.ERROR, (code, message, fix), place, node, below)

    def warning(self, code: str, message: str, fix: str, place: Place, node: str = "", *, below: int = 0) -> None:
        """Something that is hardly meant so."""
        if not self.only_errors:
            self._add(Severity.WARNING, (code, message, fix), place, node, below)

    def misshapen(self, error: ValidationError, place: Place, node: str = "") -> None:
        """What pydantic says, one problem each."""
        for detail in islice(error.errors(include_url=False, include_input=False), MAX_PROBLEMS + 1):
            where = (*place, *detail["loc"])
            key = ".".join(str(part) for part in where) or "the file"
            fix = _FIXES.get(detail["type"], "Correct it.")
            self.error("shape", f"{key}: {_lower(detail['msg'])}", fix, where, node or self._node_at(where))

    def take(self, problems: Iterable[Problem]) -> None:
        """What was found elsewhere."""
        taken = list(problems)
        self.problems += taken
        self._from_elsewhere += sum(one.severity == Severity.ERROR for one in taken)

    def _add(self, severity: Severity, words: tuple[str, str, str], place: Place, node: str, below: int) -> None:
        self._counts[severity] += 1
        if self._counts[severity] > MAX_PROBLEMS + 1:
            return
        code, message, fix = words
        if self._counts[severity] > MAX_PROBLEMS:
            code, message, fix = "too_many", f"there are more than {MAX_PROBLEMS} {severity}s", "Correct these first."
            place, node, below = (), "", 0
        line = self.source.line_of(place)
        self.problems.append(
            Problem(
                severity=severity,
                code=code,
                message=_cut(message),
                fix=_cut(fix),
                file=self.source.name,
                line=line + below if line else 0,
                node=node,
            )
        )

    def _node_at(self, place: Place) -> str:
        """The id of the node around a place, as far as it says one."""
        for index in range(len(place) - 1):
            if place[index] == "nodes" and isinstance(place[index + 1], int):
                node = value_at(self.source.data, place[: index + 2])
                return str(node.get("id", "")) if isinstance(node, dict) else ""
        return ""


def value_at(data: Any, place: Place) -> Any:
    """What stands at a place; None where nothing does."""
    for key in place:
        try:
            data = data[key]
        except (KeyError, IndexError, TypeError):
            return None
    return data


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]

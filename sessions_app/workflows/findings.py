"""Collecting what is wrong with one file while it is read to its end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from sessions_app.workflows.problems import Problem, Severity
from sessions_app.workflows.reading import Place, Source

_FIXES = {
    "missing": "Add it.",
    "string_pattern_mismatch": "Use letters, digits, “_”, “-”, “.” and “:”.",
}


class Findings:
    """The problems of one file; each is told with the line of the place it is about."""

    def __init__(self, source: Source):
        self.source = source
        self.problems: list[Problem] = []

    def failed(self) -> bool:
        """Whether something keeps the workflow from being run."""
        return any(problem.severity == Severity.ERROR for problem in self.problems)

    def error(self, code: str, message: str, fix: str, place: Place, node: str = "", *, below: int = 0) -> None:
        """Something that keeps the workflow from being run; ``below`` counts lines within a text."""
        self._add(Severity.ERROR, (code, message, fix), place, node, below)

    def warning(self, code: str, message: str, fix: str, place: Place, node: str = "", *, below: int = 0) -> None:
        """Something that is hardly meant so."""
        self._add(Severity.WARNING, (code, message, fix), place, node, below)

    def misshapen(self, error: ValidationError, place: Place, node: str = "") -> None:
        """What pydantic says, one problem each."""
        for detail in error.errors(include_url=False, include_input=False):
            where = (*place, *detail["loc"])
            key = ".".join(str(part) for part in where) or "the file"
            fix = _FIXES.get(detail["type"], "Correct it.")
            self.error("shape", f"{key}: {_lower(detail['msg'])}", fix, where, node or self._node_at(where))

    def take(self, problems: Iterable[Problem]) -> None:
        """What was found elsewhere."""
        self.problems += problems

    def _add(self, severity: Severity, words: tuple[str, str, str], place: Place, node: str, below: int) -> None:
        code, message, fix = words
        line = self.source.line_of(place)
        self.problems.append(
            Problem(
                severity=severity,
                code=code,
                message=message,
                fix=fix,
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


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]

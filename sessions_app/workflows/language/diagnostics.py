"""Diagnostics of workflow files: what is wrong, where it stands, and how to fix it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Any, Final

from pydantic import ValidationError

from sessions_app.workflows.language.limits import MAX_PROBLEMS

PathInFile = tuple[str | int, ...]
"""Where a value is in a file: the keys and indexes that lead to it."""
MAX_TEXT_LENGTH: Final = 500
"""Characters of a message or fix, because what they quote from the file can be of any length."""
_FIXES: Final = {
    "missing": "Add it.",
    "string_pattern_mismatch": "Use only letters, digits, “_”, “-”, “.” and “:”.",
}
MALFORMED_NODE_TYPE: Final = "@misshapen"
"""The type of a placeholder for a malformed node. Nothing is reported about references to it."""
_ID: Final = re.compile(r"[A-Za-z0-9_.:\-]{1,128}\Z")
_NO_EDGE: Final = {"source": "", "target": ""}
_NO_COMPONENT: Final = {"interface": {}, "nodes": [{"id": "it", "type": MALFORMED_NODE_TYPE}], "edges": []}
_MINIMAL_VALUES: Final[Mapping[str, Any]] = {"version": 1, "metadata": {"name": "workflow"}}


class Severity(StrEnum):
    """Whether a workflow can be run in spite of a diagnostic."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """One problem: what is wrong (``message``), where, and how to fix it.

    ``line`` counts from 1, and 0 means unknown. ``node`` is the id of a node, or empty.
    """

    severity: Severity
    code: str
    message: str
    fix: str
    file: str
    line: int = 0
    node: str = ""

    def __str__(self) -> str:
        """Format the diagnostic as one line, as compilers do."""
        parts = [self.file]
        if self.line:
            parts = [f"{self.file}:{self.line}"]
        parts.append(self.severity)
        if self.node:
            parts.append(f"step {self.node}")
        parts.append(f"{self.message} [{self.code}] {self.fix}".rstrip())
        return ": ".join(parts)


class InvalidWorkflow(Exception):
    """The workflow cannot be run as it is written. ``problems`` holds every diagnostic, including warnings."""

    def __init__(self, problems: Iterable[Diagnostic]):
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


def invalid_workflow(name: str, line: int, code: str, message: str, fix: str) -> InvalidWorkflow:
    """Return the error for a problem that stops the reading of the file."""
    return InvalidWorkflow(
        [Diagnostic(severity=Severity.ERROR, code=code, message=message, fix=fix, file=name, line=line)]
    )


@dataclass(frozen=True, slots=True)
class ParsedText:
    """The data of a file (dict, list, str, int, float, bool, None), and the line of each value."""

    name: str
    data: Any
    lines: Mapping[PathInFile, int] = field(default_factory=dict)

    def line_of(self, place: PathInFile) -> int:
        """Return the line of a value, or of the nearest value around it; 0 if none is known."""
        for length in range(len(place), -1, -1):
            if line := self.lines.get(place[:length]):
                return line
        return 0


class DiagnosticCollector:
    """Collects the diagnostics of one file, and adds the line of each."""

    def __init__(self, source: ParsedText):
        self.source = source
        self.problems: list[Diagnostic] = []
        self._counts = dict.fromkeys(Severity, 0)
        self._from_elsewhere = 0
        self.only_errors = False
        """Drop warnings: in a part that is incomplete because of an error, they may result from what is missing."""

    @property
    def errors(self) -> int:
        """The number of errors so far."""
        return self._counts[Severity.ERROR] + self._from_elsewhere

    def failed(self) -> bool:
        """Return whether an error prevents the workflow from being run."""
        return self.errors > 0

    def error(self, code: str, message: str, fix: str, place: PathInFile, node: str = "", *, below: int = 0) -> None:
        """Add a problem that prevents the workflow from being run.

        ``below`` is the number of lines below ``place``, for a problem within a text of several lines.
        """
        self._add(Severity.ERROR, (code, message, fix), place, node, below)

    def warning(self, code: str, message: str, fix: str, place: PathInFile, node: str = "", *, below: int = 0) -> None:
        """Add a problem that is probably a mistake, but does not prevent a run."""
        if not self.only_errors:
            self._add(Severity.WARNING, (code, message, fix), place, node, below)

    def add_malformed(self, error: ValidationError, place: PathInFile, node: str = "") -> None:
        """Add the errors that pydantic found, as one problem each."""
        for detail in islice(error.errors(include_url=False, include_input=False), MAX_PROBLEMS + 1):
            where = (*place, *detail["loc"])
            key = ".".join(str(part) for part in where) or "the file"
            fix = _FIXES.get(detail["type"], "Correct this value.")
            self.error("shape", f"{key}: {_lowercase_first(detail['msg'])}", fix, where, node or self._node_at(where))

    def take(self, problems: Iterable[Diagnostic]) -> None:
        """Add the diagnostics of another file."""
        taken = list(problems)
        self.problems += taken
        self._from_elsewhere += sum(diagnostic.severity == Severity.ERROR for diagnostic in taken)

    def _add(self, severity: Severity, words: tuple[str, str, str], place: PathInFile, node: str, below: int) -> None:
        self._counts[severity] += 1
        if self._counts[severity] > MAX_PROBLEMS + 1:
            return
        code, message, fix = words
        if self._counts[severity] > MAX_PROBLEMS:
            code = "too_many"
            message = f"there are more than {MAX_PROBLEMS} {severity}s"
            fix = "Correct the listed ones first."
            place, node, below = (), "", 0
        line = self.source.line_of(place)
        if line:
            line += below
        diagnostic = Diagnostic(
            severity=severity,
            code=code,
            message=_shorten(message),
            fix=_shorten(fix),
            file=self.source.name,
            line=line,
            node=node,
        )
        self.problems.append(diagnostic)

    def _node_at(self, place: PathInFile) -> str:
        """Return the id of the node around a place, or “” if it has none."""
        for index in range(len(place) - 1):
            if place[index] == "nodes" and isinstance(place[index + 1], int):
                node = value_at(self.source.data, place[: index + 2])
                if isinstance(node, dict):
                    return str(node.get("id", ""))
                return ""
        return ""


def value_at(data: Any, place: PathInFile) -> Any:
    """Return the value at a place; None if there is none."""
    for key in place:
        try:
            data = data[key]
        except (KeyError, IndexError, TypeError):
            return None
    return data


def _shorten(text: str) -> str:
    if len(text) <= MAX_TEXT_LENGTH:
        return text
    return f"{text[:MAX_TEXT_LENGTH]}…"


def _lowercase_first(text: str) -> str:
    return text[:1].lower() + text[1:]


def remove_malformed(data: Mapping[str, Any], places: Iterable[PathInFile]) -> dict[str, Any]:
    """Return a copy of a file without the values at these places, in which other nodes and edges keep their index."""
    kept = _with_copied_lists(data)
    if isinstance(kept.get("components"), dict):
        kept["components"] = dict(kept["components"])
    copied: set[str] = set()
    for place in places:
        if place[:1] == ("components",) and len(place) > 1:
            _remove_from_component(kept["components"], str(place[1]), place[2:], copied)
        elif not _remove_part(kept, place):
            key = str(place[0]) if place else ""
            _remove_key(kept, key)
    return kept


def _with_copied_lists(values: Mapping[str, Any]) -> dict[str, Any]:
    copy = dict(values)
    for key, value in values.items():
        if isinstance(value, list):
            copy[key] = list(value)
    return copy


def _remove_from_component(components: dict[str, Any], name: str, place: PathInFile, copied: set[str]) -> None:
    body = components.get(name)
    if not isinstance(body, dict):
        components[name] = _NO_COMPONENT
        return
    if name not in copied:
        copied.add(name)
        body = components[name] = _with_copied_lists(body)
    if not _remove_part(body, place):
        components[name] = dict(_NO_COMPONENT)


def _remove_part(body: dict[str, Any], place: PathInFile) -> bool:
    """Remove one node or edge; return False if the place is not within one."""
    if len(place) < 2 or place[0] not in ("nodes", "edges") or not isinstance(place[1], int):
        return False
    key, index = str(place[0]), place[1]
    if not isinstance(body.get(key), list) or index >= len(body[key]):
        return False
    if key == "nodes":
        body[key][index] = _placeholder_node(body[key][index], index)
    else:
        body[key][index] = _NO_EDGE
    return True


def _placeholder_node(node: Any, index: int) -> dict[str, Any]:
    placeholder = {"id": f"misshapen:{index}", "type": MALFORMED_NODE_TYPE, "parentId": None}
    if isinstance(node, dict):
        name, parent = node.get("id"), node.get("parentId")
        if isinstance(name, str) and _ID.match(name):
            placeholder["id"] = name
        if isinstance(parent, str):
            placeholder["parentId"] = parent
    return placeholder


def _remove_key(kept: dict[str, Any], key: str) -> None:
    if key == "edges":
        kept["edges"] = []
        kept["nodes"] = kept.get("nodes")
    elif key == "nodes":
        kept["edges"], kept["nodes"] = [], []
    elif key in _MINIMAL_VALUES:
        kept[key] = _MINIMAL_VALUES[key]
    else:
        kept.pop(key, None)

"""What is wrong with a workflow file: where it stands, what it is, and what mends it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """Whether a file can be run in spite of it."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """One finding. ``line`` counts from 1, 0 is unknown; ``node`` is an id or empty."""

    severity: Severity
    code: str
    message: str
    fix: str
    file: str
    line: int = 0
    node: str = ""

    def __str__(self) -> str:
        """One line, as compilers write it."""
        place = f"{self.file}:{self.line}" if self.line else self.file
        about = f"node {self.node}: " if self.node else ""
        return f"{place}: {self.severity}: {about}{self.message} [{self.code}] {self.fix}".rstrip()


class InvalidWorkflow(Exception):
    """The workflow cannot be run as it is written; ``problems`` has every finding, warnings too."""

    def __init__(self, problems: Iterable[Diagnostic]):
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))

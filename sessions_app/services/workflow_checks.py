"""What is wrong with the text of a workflow, and how it looks: for editors, whether it is saved or not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sessions_app.workflows.drawing import draw_for_page
from sessions_app.workflows.library import Texts
from sessions_app.workflows.loading import load
from sessions_app.workflows.problems import Problem


@dataclass(frozen=True, slots=True)
class Checked:
    """``svg`` is empty where an error keeps it from being run."""

    problems: tuple[Problem, ...]
    svg: str

    @property
    def is_valid(self) -> bool:
        """Whether it can be run."""
        return bool(self.svg)

    def document(self) -> dict[str, Any]:
        """``{valid, problems: [{severity, code, message, fix, file, line, node}], svg}``."""
        return {"valid": self.is_valid, "problems": [asdict(one) for one in self.problems], "svg": self.svg}


def check(text: str, files: Mapping[str, str] | None = None) -> Checked:
    """Look at a text and the files that it names. Nothing is written, and nothing of it is run."""
    loaded = load(text, library=Texts(files or {}))
    svg = draw_for_page(loaded.workflow, {}) if loaded.workflow else ""
    return Checked(loaded.problems, svg)

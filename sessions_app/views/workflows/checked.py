"""What a page shows of a text: its problems with their lines, its drawing, and its nodes to choose from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django.utils.safestring import mark_safe

from sessions_app.services.workflow_texts import check_text
from sessions_app.views.workflows.node_form import NodeForm
from sessions_app.workflows.problems import Problem

SHOWN: Final = 100
"""Problems on the page, the first."""
EXCERPT: Final = 80


NOT_CHECKED: Final[Mapping[str, Any]] = {"valid": False, "problems": [], "svg": "", "is_unchecked": True}
"""For ``workflows/check.html``, of a text that could not be checked now."""


def check_context(text: str, files: Mapping[str, str]) -> dict[str, Any]:
    """For ``workflows/check.html`` and ``workflows/node_settings.html``. Raises ChecksUnavailable."""
    found, lines = check_text(text, files), text.split("\n")
    return {
        "node_ids": found.nodes,
        "valid": found.is_valid,
        "problems": [_shown(one, lines) for one in found.problems[:SHOWN]],
        "more_problems": max(len(found.problems) - SHOWN, 0),
        "svg": mark_safe(found.svg),  # noqa: S308 - drawn by us, every word of the file escaped
        "is_empty": not text.strip(),
    }


def _shown(problem: Problem, lines: list[str]) -> dict[str, Any]:
    here = problem.file == "workflow" and 0 < problem.line <= len(lines)
    return {"problem": problem, "here": here, "excerpt": lines[problem.line - 1].strip()[:EXCERPT] if here else ""}


def settings_context(node: str, form: NodeForm | None) -> dict[str, Any]:
    """For ``workflows/node_settings.html``, beside ``check_context``."""
    return {"node": node, "node_form": form}

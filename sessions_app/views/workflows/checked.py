"""What a page shows of a text: its problems with their lines, its drawing, and its nodes to choose from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django.utils.safestring import mark_safe

from sessions_app.services.workflow_checks import check
from sessions_app.views.workflows.node_form import NodeForm
from sessions_app.workflows.editing import places_of_nodes
from sessions_app.workflows.problems import Problem

SHOWN: Final = 100
"""Problems on the page, the first."""
EXCERPT: Final = 80


def check_context(text: str, files: Mapping[str, str]) -> dict[str, Any]:
    """For ``workflows/check.html``."""
    found, lines = check(text, files), text.split("\n")
    return {
        "valid": found.is_valid,
        "problems": [_shown(one, lines) for one in found.problems[:SHOWN]],
        "more_problems": max(len(found.problems) - SHOWN, 0),
        "svg": mark_safe(found.svg),  # noqa: S308 - drawn by us, every word of the file escaped
        "is_empty": not text.strip(),
    }


def _shown(problem: Problem, lines: list[str]) -> dict[str, Any]:
    here = problem.file == "workflow" and 0 < problem.line <= len(lines)
    return {"problem": problem, "here": here, "excerpt": lines[problem.line - 1].strip()[:EXCERPT] if here else ""}


def settings_context(text: str, node: str, form: NodeForm | None) -> dict[str, Any]:
    """For ``workflows/node_settings.html``."""
    return {"node_ids": list(places_of_nodes(text)), "node": node, "node_form": form}

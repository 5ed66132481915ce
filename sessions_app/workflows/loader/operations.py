"""What is done with workflow texts in limited processes: reading, checking, drawing and editing them.

The author of a text decides how expensive that is, so it happens in children of a fork server, see
``sessions_app.confined``.
"""

from __future__ import annotations

import socket
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final

from sessions_app.confined.link import ClientLink
from sessions_app.workflows.language.diagnostics import Diagnostic, Severity
from sessions_app.workflows.language.files import FileUnavailable
from sessions_app.workflows.loader import editing, graph_json
from sessions_app.workflows.loader.drawing import DrawingTooLarge, draw_inline_svg
from sessions_app.workflows.loader.loading import LoadResult, load_workflow


class RemoteFiles:
    """Reads files through the client, because a child can open none."""

    def __init__(self, link: ClientLink):
        self._link = link

    def read(self, path: str) -> str:
        """Return the text of a file. Raises FileUnavailable."""
        answer = self._link.ask({"path": path})
        if "missing" in answer:
            raise FileUnavailable(answer["missing"])
        return str(answer["text"])


def loaded(link: ClientLink, text: str, name: str) -> dict[str, Any]:
    """Return the workflow of a text, if it is valid, and its problems."""
    found = load_workflow(text.encode("utf-8", "surrogatepass"), name, RemoteFiles(link))
    workflow = None
    if found.workflow:
        workflow = graph_json.graph_to_json(found.workflow)
    return {"workflow": workflow, "problems": [asdict(diagnostic) for diagnostic in found.problems]}


def checked(link: ClientLink, text: str, name: str) -> dict[str, Any]:
    """Return what the editor shows: the problems, the drawing, and the ids of the nodes."""
    found = load_workflow(text.encode("utf-8", "surrogatepass"), name, RemoteFiles(link))
    svg, problems = _draw_graph(found, name)
    return {
        "valid": found.workflow is not None,
        "problems": [asdict(diagnostic) for diagnostic in problems],
        "svg": svg,
        "nodes": list(editing.find_node_paths(text)),
    }


def _draw_graph(found: LoadResult, name: str) -> tuple[str, tuple[Diagnostic, ...]]:
    if found.workflow is None:
        return "", found.problems
    try:
        return draw_inline_svg(found.workflow, {}), found.problems
    except DrawingTooLarge:
        pass
    message = "the workflow is too large to draw"
    more = Diagnostic(
        severity=Severity.WARNING, code="too_large", message=message, fix="Split it into smaller workflows.", file=name
    )
    return "", (*found.problems, more)


def node(link: ClientLink, text: str, node: str) -> dict[str, Any]:
    """Return the settings of a node, or why there are none."""
    try:
        return {"data": editing.node_data(text, node)}
    except editing.EditNotPossible as error:
        return {"not_editable": str(error)}


def edited(
    link: ClientLink, text: str, node: str, settings: Mapping[str, Any], session_kept: bool | None
) -> dict[str, Any]:
    """Return the text with changed settings of a node, or why it cannot be changed."""
    try:
        return {"text": editing.apply_changes(text, node, settings, session_kept=session_kept)}
    except editing.EditNotPossible as error:
        return {"not_editable": str(error)}


OPERATIONS: Final[Mapping[str, Callable[..., dict[str, Any]]]] = {
    operation.__name__: operation for operation in (loaded, checked, node, edited)
}

_WARM_UP_WORKFLOW: Final = (
    "version: 3\nmetadata: {name: x}\nnodes: [{id: a, type: shell, data: {script: '{{ b.c }}'}}]\nedges: []",
    '{"version": 3, "nodes": [{"id": "a", "type": "shel"}], "edges": []}',
    '{"version": 3, "metadata": {"name": "x"}, "nodes": [{"id": "a", "type": "shel"}], "edges": []}',
    "{",
)


def preload() -> None:
    """Import and build everything that children need, because they cannot open files."""
    unicodedata.normalize("NFKC", "")  # Python’s parser imports this module for names that are not ASCII
    ours, theirs = socket.socketpair()
    with ours, theirs:
        link = ClientLink(ours)
        for text in _WARM_UP_WORKFLOW:
            checked(link, text, "")
            loaded(link, text, "")
        edited(link, _WARM_UP_WORKFLOW[0], "a", {"label": "A"}, None)

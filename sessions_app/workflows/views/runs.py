"""The page of a run: the graph with the states of its nodes, one node in detail, and the actions."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from django.contrib import messages
from django.contrib.auth.models import User
from django.http import Http404, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.safestring import mark_safe
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST, require_safe

from sessions_app.accounts.authorization import may_write
from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.kernel.rules.readable_json import readable_json
from sessions_app.kernel.services.errors import ChecksUnavailable, SessionsError, Throttled
from sessions_app.pages.shortcuts import part_response
from sessions_app.workflows.engine.records import ITERATION
from sessions_app.workflows.labels import RUN_STATE_LABELS, TRIGGER_LABELS, node_run_label
from sessions_app.workflows.language.diagnostics import InvalidWorkflow
from sessions_app.workflows.language.graph import Scope, WorkflowGraph
from sessions_app.workflows.language.limits import MAX_RUN_DRAWING
from sessions_app.workflows.loader.drawing import DrawingTooLarge, NodeMark, draw_inline_svg
from sessions_app.workflows.models import NodeRun, WorkflowRun
from sessions_app.workflows.services import runs
from sessions_app.workflows.services.loading import user_load_slot
from sessions_app.workflows.services.run_records import graph_of_run
from sessions_app.workflows.services.runs import rerun
from sessions_app.workflows.views.lookups import find_run

_REPETITION_SUFFIX: Final = re.compile(r"#\d+|\[\d+\]")
"""Attempt and iteration in the path of a node run. Without them, the path is that of the node in the graph."""
MAX_NEIGHBOURS_SHOWN: Final = 10
"""Maximum number of node runs that are listed before and after the selected one."""
MAX_VALUE_LENGTH: Final = 20_000
"""Maximum number of characters that are shown of a value, script, prompt or output."""
MAX_RECORDS_LISTED: Final = 200
_OVERVIEW_FIELDS: Final = (
    "id",
    "run_id",
    "position",
    "path",
    "node",
    "kind",
    "state",
    "iteration",
    "waiting_for",
    "session_id",
)


@never_cache
@require_safe
def show_run(request: UserHttpRequest, run_id: uuid.UUID) -> HttpResponse:
    """Show a run; ``?node=`` selects a node of the graph, ``?at=`` one of its node runs."""
    row = find_run(request, run_id)
    selected = {key: request.GET[key] for key in ("node", "at") if request.GET.get(key)}
    live = reverse("workflow-run-live", args=(row.id,)) + (f"?{urlencode(selected)}" if selected else "")
    return render(request, "workflows/run.html", {**run_context(request.user, row, request.GET), "live": live})


@never_cache
@require_GET
def run_updates(request: UserHttpRequest, run_id: uuid.UUID) -> JsonResponse:
    """Return the current state of the run as HTML."""
    row = find_run(request, run_id)
    return part_response("run", "workflows/run_state.html", run_context(request.user, row, request.GET), request)


def run_context(user: User, row: WorkflowRun, given: Mapping[str, str]) -> dict[str, Any]:
    """Return the context of ``workflows/run_state.html``, with a constant number of queries."""
    node_runs = list(row.node_runs.only(*_OVERVIEW_FIELDS, "started_at", "ended_at").order_by("position"))
    graph = _graph(user, row)
    by_path: dict[str, list[NodeRun]] = {}
    for node_run in node_runs:
        by_path.setdefault(_REPETITION_SUFFIX.sub("", node_run.path), []).append(node_run)
    titles = _titles(graph.root) if graph else {}
    selected = _selected_record(row, by_path, given, titles)
    paths = _leaf_paths(graph.root) if graph else []
    return {
        "run": row,
        "may_write": may_write(user, row.team_id),
        "label": RUN_STATE_LABELS[row.state],
        "by": TRIGGER_LABELS[row.trigger],
        "svg": _render_graph(graph, by_path) if graph else "",
        "is_readable": graph is not None,
        "done": sum(path in by_path and by_path[path][-1].state != "running" for path in paths),
        "nodes": len(paths),
        "waiting": [
            _record_context(row, node_run, titles)
            for node_run in node_runs
            if node_run.state == "running" and node_run.waiting_for == "user"
        ],
        "times": [_record_context(row, node_run, titles) for node_run in node_runs[-MAX_RECORDS_LISTED:]],
        "earlier": max(len(node_runs) - MAX_RECORDS_LISTED, 0),
        "selected": selected,
        "inputs": _value_texts(row.inputs),
        "outputs": _value_texts(row.outputs),
    }


def _graph(user: User, row: WorkflowRun) -> WorkflowGraph | None:
    try:
        with user_load_slot(user, counted=False):
            return graph_of_run(row)
    except (InvalidWorkflow, ChecksUnavailable, Throttled):
        return None  # saved by a version that allowed more, or it cannot be loaded now


def _leaf_paths(scope: Scope, prefix: str = "") -> list[str]:
    """Return the paths of all nodes that are not loops or components."""
    found: list[str] = []
    for name, node in scope.nodes.items():
        found += _leaf_paths(node.body, f"{prefix}{name}/") if node.body else [f"{prefix}{name}"]
    return found


def _titles(scope: Scope, prefix: str = "") -> dict[str, str]:
    """Return the labels of all nodes by their path, as the drawing and errors show them."""
    found: dict[str, str] = {}
    for name, node in scope.nodes.items():
        found[f"{prefix}{name}"] = node.label
        if node.body:
            found |= _titles(node.body, f"{prefix}{name}/")
    return found


def _render_graph(graph: WorkflowGraph, by_path: Mapping[str, Sequence[NodeRun]]) -> str:
    """Return the drawing with the states of the nodes; empty if it is too large for a page that is drawn repeatedly."""
    marks = {path: _node_mark(path, _newest_record(node_runs)) for path, node_runs in by_path.items()}
    try:
        svg = draw_inline_svg(graph, marks, MAX_RUN_DRAWING)
    except DrawingTooLarge:
        return ""
    return mark_safe(svg)  # noqa: S308 - our own drawing, which escapes every text of the file


def _newest_record(node_runs: Sequence[NodeRun]) -> NodeRun:
    """Return the newest node run; for a loop, that of the loop itself instead of an iteration."""
    own = [node_run for node_run in node_runs if node_run.kind != ITERATION]
    return (own or node_runs)[-1]


def _node_mark(path_in_graph: str, newest: NodeRun) -> NodeMark:
    label = node_run_label(newest)
    return NodeMark(label.tone, label.text.lower(), f"?{urlencode({'node': path_in_graph})}#node-detail")


def _record_context(row: WorkflowRun, one: NodeRun, titles: Mapping[str, str]) -> dict[str, Any]:
    path_in_graph = _REPETITION_SUFFIX.sub("", one.path)
    if one.session_id:
        session = reverse("session", args=(row.task_id, one.session_id))
    else:
        session = ""
    query = urlencode({"node": path_in_graph, "at": one.path})
    title = titles.get(path_in_graph) or one.node
    return {"row": one, "title": title, "label": node_run_label(one), "query": query, "session": session}


def _selected_record(
    row: WorkflowRun, by_path: Mapping[str, Sequence[NodeRun]], given: Mapping[str, str], titles: Mapping[str, str]
) -> dict[str, Any] | None:
    """Return the selected node run and those around it; in a failed run, the last failed one by default."""
    path_in_graph, at = given.get("node", ""), given.get("at", "")
    if not path_in_graph and row.state == "failed":
        failed = [node_run for node_runs in by_path.values() for node_run in node_runs if node_run.state == "failed"]
        path_in_graph = _REPETITION_SUFFIX.sub("", failed[-1].path) if failed else ""
    node_runs = [node_run for node_run in by_path.get(path_in_graph, ()) if node_run.kind != ITERATION] or list(
        by_path.get(path_in_graph, ())
    )
    if not node_runs:
        title = titles.get(path_in_graph) or path_in_graph
        if path_in_graph:
            return {"path_in_graph": path_in_graph, "title": title}
        return None
    index = next((number for number, one in enumerate(node_runs) if one.path == at), len(node_runs) - 1)
    one = row.node_runs.get(pk=node_runs[index].pk)
    return {
        "path_in_graph": path_in_graph,
        **_record_context(row, one, titles),
        "number": index + 1,
        "count": len(node_runs),
        "near": [
            _record_context(row, near, titles)
            for near in node_runs[max(index - MAX_NEIGHBOURS_SHOWN, 0) : index + MAX_NEIGHBOURS_SHOWN + 1]
        ]
        if len(node_runs) > 1
        else [],
        "inputs": _value_texts(one.inputs),
        "outputs": _value_texts(one.outputs),
        "script": str(one.request.get("script", ""))[:MAX_VALUE_LENGTH],
        "prompt": str(one.request.get("prompt", ""))[:MAX_VALUE_LENGTH],
        "tail": one.output_tail[-MAX_VALUE_LENGTH:],
        "may_resume": row.is_over and row.state != "succeeded",
    }


def _value_texts(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return values as texts, without hidden ports and empty values."""
    shown = ((name, value) for name, value in values.items() if not name.startswith("@") and value not in (None, ""))
    return [(name, _value_text(value)[:MAX_VALUE_LENGTH]) for name, value in shown]


def _value_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return readable_json(value, MAX_VALUE_LENGTH)


@require_POST
def act_on_run(request: UserHttpRequest, run_id: uuid.UUID, action: str) -> HttpResponse:
    """Cancel a run, resume a failed one (at ``node`` if given), or run the same again."""
    row = shown = find_run(request, run_id)
    if action not in ("cancel", "resume", "again"):
        raise Http404(action)
    try:
        if action == "cancel":
            runs.cancel_run(request.user, row)
            messages.info(request, "Cancelling the run: its scripts and turns are being stopped; finished work stays.")
        else:
            with user_load_slot(request.user, counted=False):
                node = request.POST.get("node", "")
                if action == "again":
                    shown = rerun(request.user, row)
                else:
                    shown = runs.retry_run(request.user, row, node)
    except SessionsError as error:
        messages.error(request, error.message)
    return redirect("workflow-run", shown.id)

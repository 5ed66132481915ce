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
from sessions_app.workflows.services.loading import user_load_slot
from sessions_app.workflows.services.run_conditions import disabled_since_start
from sessions_app.workflows.services.run_records import graph_of_run
from sessions_app.workflows.services.runs import cancel_run, rerun, retry_run
from sessions_app.workflows.views.lookups import find_run

_REPETITION_SUFFIX: Final = re.compile(r"#\d+|\[\d+\]")
"""Attempt and iteration in the path of a node run. Without them, the path is that of the node in the graph."""
MAX_NEIGHBOURS_SHOWN: Final = 10
"""Maximum number of node runs that are listed before and after the selected one."""
MAX_VALUE_LENGTH: Final = 20_000
"""Maximum number of characters that are shown of a value, script, prompt or output."""
MAX_RECORDS_LISTED: Final = 200
NodeRunsByPath = Mapping[str, Sequence[NodeRun]]
"""Node runs by the path of their node in the graph, in the order in which they began."""
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
    context = run_context(request.user, row, request.GET)
    selected = {key: request.GET[key] for key in ("node", "at") if request.GET.get(key)}
    context["live"] = reverse("workflow-run-live", args=(row.id,))
    if selected:
        context["live"] += f"?{urlencode(selected)}"
    return render(request, "workflows/run.html", context)


@never_cache
@require_GET
def run_updates(request: UserHttpRequest, run_id: uuid.UUID) -> JsonResponse:
    """Return the current state of the run as HTML."""
    row = find_run(request, run_id)
    return part_response("run", "workflows/run_state.html", run_context(request.user, row, request.GET), request)


def run_context(user: User, row: WorkflowRun, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the context of ``workflows/run_state.html``, with a constant number of queries."""
    node_runs = list(row.node_runs.only(*_OVERVIEW_FIELDS, "started_at", "ended_at").order_by("position"))
    by_path = _by_path_in_graph(node_runs)
    graph = _graph(user, row)
    titles: dict[str, str] = {}
    paths: list[str] = []
    svg = ""
    if graph is not None:
        titles = _titles(graph.root)
        paths = _leaf_paths(graph.root)
        svg = _render_graph(graph, by_path)
    waiting = [node_run for node_run in node_runs if node_run.state == "running" and node_run.waiting_for == "user"]
    return {
        "run": row,
        "may_write": may_write(user, row.team_id),
        "label": RUN_STATE_LABELS[row.state],
        "disabled": disabled_since_start(row),
        "by": TRIGGER_LABELS[row.trigger],
        "svg": svg,
        "is_readable": graph is not None,
        "done": sum(_has_run(by_path.get(path, ())) for path in paths),
        "nodes": len(paths),
        "waiting": [_node_run_context(row, node_run, titles) for node_run in waiting],
        "times": [_node_run_context(row, node_run, titles) for node_run in node_runs[-MAX_RECORDS_LISTED:]],
        "earlier": max(len(node_runs) - MAX_RECORDS_LISTED, 0),
        "selected": _selected_context(row, by_path, query, titles),
        "inputs": _value_texts(row.inputs),
        "outputs": _value_texts(row.outputs),
    }


def _by_path_in_graph(node_runs: Sequence[NodeRun]) -> NodeRunsByPath:
    by_path: dict[str, list[NodeRun]] = {}
    for node_run in node_runs:
        by_path.setdefault(_path_in_graph(node_run), []).append(node_run)
    return by_path


def _path_in_graph(node_run: NodeRun) -> str:
    return _REPETITION_SUFFIX.sub("", node_run.path)


def _has_run(node_runs: Sequence[NodeRun]) -> bool:
    return len(node_runs) > 0 and node_runs[-1].state != "running"


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
        if node.body:
            found += _leaf_paths(node.body, f"{prefix}{name}/")
        else:
            found.append(f"{prefix}{name}")
    return found


def _titles(scope: Scope, prefix: str = "") -> dict[str, str]:
    """Return the labels of all nodes by their path, as the drawing and errors show them."""
    found: dict[str, str] = {}
    for name, node in scope.nodes.items():
        found[f"{prefix}{name}"] = node.label
        if node.body:
            found |= _titles(node.body, f"{prefix}{name}/")
    return found


def _render_graph(graph: WorkflowGraph, by_path: NodeRunsByPath) -> str:
    """Return the drawing with the states of the nodes; empty if it is too large for a page that is drawn repeatedly."""
    marks = {path: _node_mark(path, _newest_record(node_runs)) for path, node_runs in by_path.items()}
    try:
        svg = draw_inline_svg(graph, marks, MAX_RUN_DRAWING)
    except DrawingTooLarge:
        return ""
    return mark_safe(svg)  # noqa: S308 - our own drawing, which escapes every text of the file


def _newest_record(node_runs: Sequence[NodeRun]) -> NodeRun:
    """Return the newest node run; for a loop, that of the loop itself instead of an iteration."""
    return _without_iterations(node_runs)[-1]


def _node_mark(path_in_graph: str, newest: NodeRun) -> NodeMark:
    label = node_run_label(newest)
    return NodeMark(label.tone, label.text.lower(), f"?{urlencode({'node': path_in_graph})}#node-detail")


def _node_run_context(row: WorkflowRun, node_run: NodeRun, titles: Mapping[str, str]) -> dict[str, Any]:
    path_in_graph = _path_in_graph(node_run)
    session = ""
    if node_run.session_id:
        session = reverse("session", args=(row.task_id, node_run.session_id))
    return {
        "row": node_run,
        "title": titles.get(path_in_graph) or node_run.node,
        "label": node_run_label(node_run),
        "query": urlencode({"node": path_in_graph, "at": node_run.path}),
        "session": session,
    }


def _selected_context(
    row: WorkflowRun, by_path: NodeRunsByPath, query: Mapping[str, str], titles: Mapping[str, str]
) -> dict[str, Any] | None:
    """Return the selected node run and those around it; in a failed run, the last failed one by default."""
    path_in_graph = query.get("node", "") or _path_of_failure(row, by_path)
    if not path_in_graph:
        return None
    node_runs = _without_iterations(by_path.get(path_in_graph, ()))
    if not node_runs:
        return {"path_in_graph": path_in_graph, "title": titles.get(path_in_graph) or path_in_graph}
    index = _selected_index(node_runs, query.get("at", ""))
    near: Sequence[NodeRun] = ()
    if len(node_runs) > 1:
        near = node_runs[max(index - MAX_NEIGHBOURS_SHOWN, 0) : index + MAX_NEIGHBOURS_SHOWN + 1]
    node_run = row.node_runs.get(pk=node_runs[index].pk)
    context = _node_run_context(row, node_run, titles)
    context |= {
        "path_in_graph": path_in_graph,
        "number": index + 1,
        "count": len(node_runs),
        "near": [_node_run_context(row, neighbour, titles) for neighbour in near],
        "inputs": _value_texts(node_run.inputs),
        "outputs": _value_texts(node_run.outputs),
        "script": str(node_run.request.get("script", ""))[:MAX_VALUE_LENGTH],
        "prompt": str(node_run.request.get("prompt", ""))[:MAX_VALUE_LENGTH],
        "tail": node_run.output_tail[-MAX_VALUE_LENGTH:],
        "may_resume": row.is_over and row.state != "succeeded",
    }
    return context


def _path_of_failure(row: WorkflowRun, by_path: NodeRunsByPath) -> str:
    """Return the path of the last node in the graph that failed; empty if the run has not failed."""
    path = ""
    if row.state == "failed":
        for node_runs in by_path.values():
            for node_run in node_runs:
                if node_run.state == "failed":
                    path = _path_in_graph(node_run)
    return path


def _without_iterations(node_runs: Sequence[NodeRun]) -> Sequence[NodeRun]:
    """Return the node runs without the iterations of a loop, unless there are no others."""
    return [node_run for node_run in node_runs if node_run.kind != ITERATION] or node_runs


def _selected_index(node_runs: Sequence[NodeRun], path: str) -> int:
    """Return the index of the node run with this path, or of the last one."""
    for index, node_run in enumerate(node_runs):
        if node_run.path == path:
            return index
    return len(node_runs) - 1


def _value_texts(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return values as texts, without hidden ports and empty values."""
    texts = []
    for name, value in values.items():
        if not name.startswith("@") and value not in (None, ""):
            texts.append((name, _value_text(value)[:MAX_VALUE_LENGTH]))
    return texts


def _value_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return readable_json(value, MAX_VALUE_LENGTH)


@require_POST
def act_on_run(request: UserHttpRequest, run_id: uuid.UUID, action: str) -> HttpResponse:
    """Cancel a run, resume a failed one (at ``node`` if given), or run the same again."""
    row = find_run(request, run_id)
    if action not in ("cancel", "resume", "again"):
        raise Http404(action)
    try:
        if action == "cancel":
            cancel_run(request.user, row)
            messages.info(request, "Cancelling the run: its scripts and turns are being stopped; finished work stays.")
        else:
            with user_load_slot(request.user, counted=False):
                if action == "again":
                    row = rerun(request.user, row)
                else:
                    row = retry_run(request.user, row, request.POST.get("node", ""))
    except SessionsError as error:
        messages.error(request, error.message)
    return redirect("workflow-run", row.id)

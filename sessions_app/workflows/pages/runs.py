"""The page of one run: the graph with the states of its nodes, one node in detail, and what can be done."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.safestring import mark_safe
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST, require_safe

from sessions_app.accounts.authorization import may_write
from sessions_app.services.errors import ChecksUnavailable, SessionsError, Throttled
from sessions_app.workflows.engine.records import ITERATION
from sessions_app.workflows.language.diagnostics import InvalidWorkflow
from sessions_app.workflows.language.graph import Scope, WorkflowGraph
from sessions_app.workflows.loader.drawing import NodeMark, draw_inline_svg
from sessions_app.workflows.models import NodeRun, WorkflowRun
from sessions_app.workflows.pages.listing import RUN_STATE_LABELS, TRIGGER_LABELS, find_run, node_run_label
from sessions_app.workflows.services import workflows
from sessions_app.workflows.services.loading import user_load_slot
from sessions_app.workflows.services.run_records import graph_of_run
from sessions_app.workflows.services.runs import rerun

_REPETITION_SUFFIX: Final = re.compile(r"#\d+|\[\d+\]")
"""What a record's path says of iterations and attempts; without it it is the node's place in the drawing."""
MAX_NEIGHBOURS_SHOWN: Final = 10
"""Times on each side of the chosen one that can be picked."""
MAX_VALUE_LENGTH: Final = 20_000
"""Characters of a value, and of what a script said last."""
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
def show_run(request: HttpRequest, run_id: uuid.UUID) -> HttpResponse:
    """Show a run; ``?node=`` a node of the drawing, ``?at=`` one of the times that it ran."""
    row = find_run(request, run_id)
    context = {**run_context(request.user, row, request.GET), "live": _node_url(row, "workflow-run-live", request.GET)}
    return render(request, "workflows/run.html", {**context, "writes": may_write(request.user, row.team_id)})


@never_cache
@require_GET
def run_updates(request: HttpRequest, run_id: uuid.UUID) -> JsonResponse:
    """The run as it is now."""
    row = find_run(request, run_id)
    context = {**run_context(request.user, row, request.GET), "writes": may_write(request.user, row.team_id)}
    return JsonResponse({"parts": {"run": render_to_string("workflows/run_state.html", context, request)}})


def _node_url(row: WorkflowRun, name: str, given: Mapping[str, str]) -> str:
    chosen = {key: given[key] for key in ("node", "at") if given.get(key)}
    return reverse(name, args=(row.id,)) + (f"?{urlencode(chosen)}" if chosen else "")


def run_context(user: Any, row: WorkflowRun, given: Mapping[str, str]) -> dict[str, Any]:
    """For ``workflows/run_state.html``; a constant number of queries."""
    times = list(row.node_runs.only(*_OVERVIEW_FIELDS, "started_at", "ended_at").order_by("position"))
    graph = _graph(user, row)
    by_place: dict[str, list[NodeRun]] = {}
    for node_run in times:
        by_place.setdefault(_REPETITION_SUFFIX.sub("", node_run.path), []).append(node_run)
    chosen = _selected_record(row, by_place, given)
    places = _leaf_paths(graph.root) if graph else []
    return {
        "run": row,
        "word": RUN_STATE_LABELS[row.state],
        "by": TRIGGER_LABELS[row.trigger],
        "svg": _render_graph(graph, by_place),
        "done": sum(_is_finished(by_place.get(place, ())) for place in places),
        "nodes": len(places),
        "waiting": [
            _record_context(row, node_run)
            for node_run in times
            if node_run.state == "running" and node_run.waiting_for == "user"
        ],
        "times": [_record_context(row, node_run) for node_run in times[-MAX_RECORDS_LISTED:]],
        "earlier": max(len(times) - MAX_RECORDS_LISTED, 0),
        "chosen": chosen,
        "inputs": _value_texts(row.inputs),
        "outputs": _value_texts(row.outputs),
    }


def _graph(user: Any, row: WorkflowRun) -> WorkflowGraph | None:
    try:
        with user_load_slot(user, counted=False):
            return graph_of_run(row)
    except (InvalidWorkflow, ChecksUnavailable, Throttled):
        return None  # of a version that allowed more, or not to be had now


def _leaf_paths(scope: Scope, prefix: str = "") -> list[str]:
    """The places of all nodes that lie in no box of their own."""
    found: list[str] = []
    for name, node in scope.nodes.items():
        found += _leaf_paths(node.body, f"{prefix}{name}/") if node.body else [f"{prefix}{name}"]
    return found


def _is_finished(times: Sequence[NodeRun]) -> bool:
    return bool(times) and times[-1].state != "running"


def _render_graph(graph: WorkflowGraph | None, by_place: Mapping[str, Sequence[NodeRun]]) -> str:
    if graph is None:
        return ""
    marks = {place: _node_mark(place, _newest_record(times)) for place, times in by_place.items()}
    return mark_safe(draw_inline_svg(graph, marks))  # noqa: S308 - drawn by us, every word of the file escaped


def _newest_record(times: Sequence[NodeRun]) -> NodeRun:
    """The newest of them; of a loop itself, not of an iteration of it."""
    own = [node_run for node_run in times if node_run.kind != ITERATION]
    return (own or times)[-1]


def _node_mark(place: str, newest: NodeRun) -> NodeMark:
    word = node_run_label(newest)
    return NodeMark(word.tone, word.text.lower(), f"?{urlencode({'node': place})}#node-detail")


def _record_context(row: WorkflowRun, one: NodeRun) -> dict[str, Any]:
    place = _REPETITION_SUFFIX.sub("", one.path)
    session = reverse("session", args=(row.task_id, one.session_id)) if one.session_id else ""
    query = urlencode({"node": place, "at": one.path})
    return {"row": one, "word": node_run_label(one), "query": query, "session": session}


def _selected_record(
    row: WorkflowRun, by_place: Mapping[str, Sequence[NodeRun]], given: Mapping[str, str]
) -> dict[str, Any] | None:
    """The node that was asked for, at one of the times that it ran, and the times around it; a failed one unasked."""
    place, at = given.get("node", ""), given.get("at", "")
    if not place and row.state == "failed":
        failed = [node_run for times in by_place.values() for node_run in times if node_run.state == "failed"]
        place = _REPETITION_SUFFIX.sub("", failed[-1].path) if failed else ""
    times = [node_run for node_run in by_place.get(place, ()) if node_run.kind != ITERATION] or list(
        by_place.get(place, ())
    )
    if not times:
        return {"place": place} if place else None
    index = next((number for number, one in enumerate(times) if one.path == at), len(times) - 1)
    one = row.node_runs.get(pk=times[index].pk)
    return {
        "place": place,
        **_record_context(row, one),
        "number": index + 1,
        "count": len(times),
        "near": [
            _record_context(row, near)
            for near in times[max(index - MAX_NEIGHBOURS_SHOWN, 0) : index + MAX_NEIGHBOURS_SHOWN + 1]
        ]
        if len(times) > 1
        else [],
        "inputs": _value_texts(one.inputs),
        "outputs": _value_texts(one.outputs),
        "script": str(one.request.get("script", ""))[:MAX_VALUE_LENGTH],
        "prompt": str(one.request.get("prompt", ""))[:MAX_VALUE_LENGTH],
        "tail": one.output_tail[-MAX_VALUE_LENGTH:],
        "may_retry": row.is_over and row.state != "succeeded",
    }


def _value_texts(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Values as texts, without those that no file wrote."""
    shown = ((name, value) for name, value in values.items() if not name.startswith("@") and value not in (None, ""))
    return [(name, _value_text(value)[:MAX_VALUE_LENGTH]) for name, value in shown]


def _value_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)


@require_POST
def act_on_run(request: HttpRequest, run_id: uuid.UUID, what: str) -> HttpResponse:
    """Cancel a run, go on with a failed one (from ``node`` if one is named), or run the same again."""
    row = find_run(request, run_id)
    acts = {"cancel": _cancel_run, "resume": _resume_run, "again": _rerun}
    if what not in acts:
        raise Http404(what)
    try:
        shown = acts[what](request, row)
    except SessionsError as error:
        messages.error(request, error.message)
        shown = row
    return redirect("workflow-run", shown.id)


def _cancel_run(request: HttpRequest, row: WorkflowRun) -> WorkflowRun:
    workflows.cancel_run(request.user, row)
    messages.info(request, "It is asked to end: scripts and turns are ended, what has finished stays.")
    return row


def _resume_run(request: HttpRequest, row: WorkflowRun) -> WorkflowRun:
    with user_load_slot(request.user, counted=False):
        return workflows.retry_run(request.user, row, request.POST.get("node", ""))


def _rerun(request: HttpRequest, row: WorkflowRun) -> WorkflowRun:
    with user_load_slot(request.user, counted=False):
        return rerun(request.user, row)

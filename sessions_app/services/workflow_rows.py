"""A run as the engine knows it and as its rows keep it, and as JSON for whoever asks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sessions_app.models import NodeRun, WorkflowRun
from sessions_app.services.workflow_texts import load_text
from sessions_app.workflows.graph import Node, Scope, Workflow
from sessions_app.workflows.problems import InvalidWorkflow
from sessions_app.workflows.records import Record, State

RECORD_FIELDS = ("node", "kind", "state", "inputs", "outputs", "request", "error", "iteration", "flawed")
SHOWN_TEXT = 8_000
"""Characters of one text that a document shows of a node's values."""


def workflow_of(run: WorkflowRun) -> Workflow:
    """The graph of a run, of its text as it was when it began. Raises InvalidWorkflow and ChecksUnavailable."""
    return load_text(run.text, run.files).checked


def graph_of(text: str, files: Mapping[str, str]) -> Workflow | None:
    """The graph of a text and the files that it names; None for what cannot be run. Raises ChecksUnavailable."""
    try:
        return load_text(text, files).checked
    except InvalidWorkflow:
        return None


def record_of(row: NodeRun) -> Record:
    """A row as the engine knows it."""
    values = {name: getattr(row, name) for name in RECORD_FIELDS}
    return Record(path=row.path, **values | {"state": State(row.state)})


def records_of(rows: Iterable[NodeRun]) -> dict[str, Record]:
    """Rows by their paths, in the order of their beginnings."""
    return {row.path: record_of(row) for row in sorted(rows, key=lambda row: row.position)}


def all_nodes(scope: Scope) -> Iterator[Node]:
    """Every node of a scope and of what lies within it."""
    for node in scope.nodes.values():
        yield node
        if node.body is not None:
            yield from all_nodes(node.body)


def kinds_of(workflow: Workflow) -> set[str]:
    """The types of nodes that a workflow has."""
    return {node.type for node in all_nodes(workflow.root)}


def run_document(run: WorkflowRun, *, whole: bool = False) -> dict[str, Any]:
    """What ``GET workflow-runs/{id}/`` answers, with two queries at most; long texts are cut unless ``whole``."""
    return {
        "id": str(run.id),
        "name": run.name,
        "state": run.state,
        "error": run.error,
        "trigger": run.trigger,
        "version": run.version,
        "cancel_requested": run.cancel_requested_at is not None,
        "inputs": run.inputs,
        "outputs": run.outputs,
        "created_at": _time(run.created_at),
        "started_at": _time(run.started_at),
        "ended_at": _time(run.ended_at),
        "task_id": str(run.task_id),
        "workspace_session_id": _id(run.workspace_id),
        "workflow_id": _id(run.workflow_id),
        "nodes": [_node_document(row, whole=whole) for row in run.node_runs.order_by("position")],
    }


def _node_document(row: NodeRun, *, whole: bool) -> dict[str, Any]:
    return {
        "path": row.path,
        "node": row.node,
        "kind": row.kind,
        "state": row.state,
        "iteration": row.iteration,
        "attempt": row.attempt,
        "waiting_for": row.waiting_for,
        "session_id": _id(row.session_id),
        "message_id": row.message_id,
        "inputs": row.inputs if whole else _shortened(row.inputs),
        "outputs": row.outputs if whole else _shortened(row.outputs),
        "error": row.error,
        "started_at": _time(row.started_at),
        "ended_at": _time(row.ended_at),
        "deadline_at": _time(row.deadline_at),
        "output_tail": row.output_tail,
    }


def _shortened(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _cut(value) for name, value in values.items()}


def _cut(value: Any) -> Any:
    return f"{value[:SHOWN_TEXT]}…" if isinstance(value, str) and len(value) > SHOWN_TEXT else value


def _id(key: Any) -> str | None:
    return None if key is None else str(key)


def _time(at: Any) -> str | None:
    return None if at is None else at.isoformat()

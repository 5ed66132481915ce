"""The documents of runs in the API and of the command line."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sessions_app.workflows.models import NodeRun, WorkflowRun

MAX_SHOWN_TEXT = 8_000
"""Maximum number of characters that a document shows of each text value."""


def run_document(run: WorkflowRun, *, whole: bool = False) -> dict[str, Any]:
    """Return the document of ``GET workflow-runs/{id}/`` with at most two queries; cut long texts unless ``whole``."""
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
        "created_at": _optional_time(run.created_at),
        "started_at": _optional_time(run.started_at),
        "ended_at": _optional_time(run.ended_at),
        "task_id": str(run.task_id),
        "workspace_session_id": _optional_id(run.workspace_id),
        "workflow_id": _optional_id(run.workflow_id),
        "nodes": [_node_document(row, whole=whole) for row in run.node_runs.order_by("position")],
    }


def _node_document(row: NodeRun, *, whole: bool) -> dict[str, Any]:
    inputs, outputs = row.inputs, row.outputs
    if not whole:
        inputs, outputs = _shortened(inputs), _shortened(outputs)
    return {
        "path": row.path,
        "node": row.node,
        "kind": row.kind,
        "state": row.state,
        "iteration": row.iteration,
        "attempt": row.attempt,
        "waiting_for": row.waiting_for,
        "session_id": _optional_id(row.session_id),
        "message_id": row.message_id,
        "inputs": inputs,
        "outputs": outputs,
        "error": row.error,
        "started_at": _optional_time(row.started_at),
        "ended_at": _optional_time(row.ended_at),
        "deadline_at": _optional_time(row.deadline_at),
        "output_tail": row.output_tail,
    }


def _shortened(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _shorten_value(value) for name, value in values.items()}


def _shorten_value(value: Any) -> Any:
    if isinstance(value, str) and len(value) > MAX_SHOWN_TEXT:
        return f"{value[:MAX_SHOWN_TEXT]}…"
    return value


def _optional_id(key: Any) -> str | None:
    if key is None:
        return None
    return str(key)


def _optional_time(at: datetime | None) -> str | None:
    if at is None:
        return None
    return at.isoformat()

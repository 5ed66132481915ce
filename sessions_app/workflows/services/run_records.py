"""Convert runs between rows, engine records and JSON, and raise or resolve their attention items."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from sessions_app.attention.rules import notices
from sessions_app.attention.rules.notices import AttentionKind
from sessions_app.models import (
    AttentionItem,
    TaskSession,
    raise_for_run,
    raise_item,
    resolve_for_run,
    resolve_items,
    session_transaction,
)
from sessions_app.workflows.engine.records import NodeRecord, NodeState
from sessions_app.workflows.language.graph import GraphNode, Scope, WorkflowGraph
from sessions_app.workflows.models import NodeRun, WorkflowRun
from sessions_app.workflows.services.loading import load_text

RECORD_FIELDS = ("node", "kind", "state", "inputs", "outputs", "request", "error", "iteration", "flawed")
MAX_SHOWN_TEXT = 8_000
"""Maximum number of characters that a document shows of each text value."""


def graph_of_run(run: WorkflowRun) -> WorkflowGraph:
    """Return the graph of a run, from its text at the start. Raises InvalidWorkflow and ChecksUnavailable."""
    return load_text(run.text, run.files).checked


def graph_of(text: str, files: Mapping[str, str]) -> WorkflowGraph | None:
    """Return the graph of a text and its files; None if it is invalid. Raises ChecksUnavailable."""
    return load_text(text, files).workflow


def record_from_row(row: NodeRun) -> NodeRecord:
    """Return the engine record of a row."""
    values = {name: getattr(row, name) for name in RECORD_FIELDS}
    return NodeRecord(path=row.path, **values | {"state": NodeState(row.state)})


def records_from_rows(rows: Iterable[NodeRun]) -> dict[str, NodeRecord]:
    """Return the engine records of rows by path, in the order in which they began."""
    return {row.path: record_from_row(row) for row in sorted(rows, key=lambda row: row.position)}


def iterate_nodes(scope: Scope) -> Iterator[GraphNode]:
    """Yield every node of a scope and of the scopes inside it."""
    for node in scope.nodes.values():
        yield node
        if node.body is not None:
            yield from iterate_nodes(node.body)


def node_types_of(workflow: WorkflowGraph) -> set[str]:
    """Return the node types that a workflow uses."""
    return {node.type for node in iterate_nodes(workflow.root)}


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
        "inputs": row.inputs if whole else _shortened(row.inputs),
        "outputs": row.outputs if whole else _shortened(row.outputs),
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


_RAISED_BY_SESSION = (
    AttentionKind.HELD,
    AttentionKind.PERMISSION,
    AttentionKind.QUESTION,
    AttentionKind.GAVE_UP,
    AttentionKind.ERROR,
)


def raise_node_waiting(run: WorkflowRun, row: NodeRun) -> None:
    """Raise an inbox item for a node that waits for a user, unless its session has one for the same reason."""
    if row.session_id is None:
        return
    open_items = AttentionItem.objects.filter(session=row.session_id, resolved_at=None)
    if not open_items.filter(kind__in=_RAISED_BY_SESSION).exists():
        with session_transaction(row.session_id) as transaction:
            raise_item(transaction, notices.node_waits_notice(str(run.id), row.path, run.name, row.attempt))


def resolve_node_waiting(row: NodeRun) -> None:
    """Resolve the inbox item of a node that continues, or has ended."""
    items = AttentionItem.objects.filter(
        session=row.session_id, kind=AttentionKind.WORKFLOW, resolved_at=None, key__startswith="workflow_node:"
    )
    if row.session_id is not None and items.exists():
        with session_transaction(row.session_id) as transaction:
            resolve_items(transaction, "goes_on", (AttentionKind.WORKFLOW,), key_begins="workflow_node:")


def raise_run_failed(run: WorkflowRun) -> None:
    """Raise an inbox item for a failed run.

    It belongs to the session that failed last, or else to any session of the run, or else to the run alone.
    """
    session, notice = _session_to_notify(run), notices.run_failed_notice(str(run.id), run.name, run.error, run.round)
    if session is None:
        raise_for_run(run, notice)
        return
    with session_transaction(session.id) as transaction:
        raise_item(transaction, notice, run)


def resolve_run_failed(run: WorkflowRun) -> None:
    """Resolve the inbox item of a failed run, because a user has resumed it."""
    resolve_for_run(run, "goes_on")
    prefix = notices.run_key(str(run.id))
    found = AttentionItem.objects.filter(task=run.task_id, resolved_at=None, key__startswith=prefix).first()
    if found is not None and found.session_id is not None:
        with session_transaction(found.session_id) as transaction:
            resolve_items(transaction, "goes_on", (AttentionKind.WORKFLOW,), key_begins=prefix)


def _session_to_notify(run: WorkflowRun) -> TaskSession | None:
    row = run.node_runs.filter(state="failed", session__isnull=False).select_related("session").last()
    found: TaskSession | None = row.session if row is not None else run.workspace or run.task.sessions.first()
    return found

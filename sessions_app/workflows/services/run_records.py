"""Convert runs between rows, engine records and JSON, and raise or resolve their attention items."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from sessions_app.workflows.engine.records import NodeRecord, NodeState
from sessions_app.workflows.language.graph import GraphNode, Scope, WorkflowGraph
from sessions_app.workflows.models import NodeRun, WorkflowRun
from sessions_app.workflows.services.loading import load_text

RECORD_FIELDS = ("node", "kind", "state", "inputs", "outputs", "request", "error", "iteration", "flawed")


def graph_of_run(run: WorkflowRun) -> WorkflowGraph:
    """Return the graph of a run, from its text at the start. Raises InvalidWorkflow and ChecksUnavailable."""
    return load_text(run.text, run.files).checked


def graph_of(text: str, files: Mapping[str, str]) -> WorkflowGraph | None:
    """Return the graph of a text and its files; None if it is invalid. Raises ChecksUnavailable."""
    return load_text(text, files).workflow


def record_from_row(row: NodeRun) -> NodeRecord:
    """Return the engine record of a row."""
    return NodeRecord(
        path=row.path,
        node=row.node,
        kind=row.kind,
        state=NodeState(row.state),
        inputs=row.inputs,
        outputs=row.outputs,
        request=row.request,
        error=row.error,
        iteration=row.iteration,
        flawed=row.flawed,
    )


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

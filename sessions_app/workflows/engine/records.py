"""What is stored of a run: one record for each time a node ran, its attempts, and the values within one frame."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from sessions_app.workflows.language.graph import GraphNode, Scope, SourceRef, Wire, WorkflowGraph
from sessions_app.workflows.language.schema import Port, merge_array_ports
from sessions_app.workflows.language.values import ConversionError, to_text
from sessions_app.workflows.nodes import convert_ports
from sessions_app.workflows.nodes.gate import GateSettings

ITERATION: Final = "iteration"
PATH_STEP: Final = re.compile(r"(?P<id>[^#\[\]/]+)(#\d+)?(\[(?P<iteration>\d+)\])?\Z")
"""One step of a path."""


class NodeState(StrEnum):
    """How far a node has come."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    RETRIED = "retried"
    """A gate that was not passed; what leads to it has begun anew."""
    SKIPPED = "skipped"
    """It did not begin, because something before it failed."""
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """One time that a node ran. ``request`` is the work outside that it asks for; ``{}`` where there is none.

    ``iteration``: of a loop the one it is in, of an iteration its number. ``flawed``: something in it has failed,
    and it went on all the same.
    """

    path: str
    node: str
    kind: str
    state: NodeState = NodeState.RUNNING
    inputs: Mapping[str, Any] = field(default_factory=dict)
    outputs: Mapping[str, Any] = field(default_factory=dict)
    request: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    iteration: int = 0
    flawed: bool = False

    @property
    def is_finished(self) -> bool:
        """Whether nothing more comes of it."""
        return self.state != NodeState.RUNNING

    @property
    def is_at_work(self) -> bool:
        """Whether something outside of the engine works for it."""
        return self.state == NodeState.RUNNING and bool(self.request)


def record_path(prefix: str, node: str, attempt: int) -> str:
    """The path of a node in a frame; ``attempt`` counts from 1."""
    return f"{prefix}{node}" if attempt == 1 else f"{prefix}{node}#{attempt}"


def node_of_path(workflow: WorkflowGraph, path: str) -> GraphNode:
    """The node of a record. Raises KeyError for a path that is none of this workflow."""
    scope, node = workflow.root, None
    for step in path.split("/"):
        found = PATH_STEP.match(step)
        if found is None or (node is not None and node.body is None):
            raise KeyError(path)
        scope = node.body if node is not None and node.body is not None else scope
        node = scope.nodes[found["id"]]
    assert node is not None  # noqa: S101  (a path has a step at least)
    return node


RecordsByPath = Mapping[str, NodeRecord]


def gate_retries(records: RecordsByPath, scope: Scope, prefix: str, gate: GraphNode) -> list[NodeRecord]:
    """Every time that a gate was not passed in a frame, the latest last."""
    settings = (scope.nodes[name].settings for name in scope.gates)
    most = 1 + sum(one.max_retries for one in settings if isinstance(one, GateSettings))
    found = (records.get(record_path(prefix, gate.id, attempt)) for attempt in range(1, most + 1))
    return [record for record in found if record is not None and record.state == NodeState.RETRIED]


def gates_repeating(scope: Scope, name: str) -> list[GraphNode]:
    """The gates that run this node again."""
    return [scope.nodes[gate] for gate in scope.gates if name in scope.nodes[gate].reset]


def current_attempt(records: RecordsByPath, scope: Scope, prefix: str, name: str) -> int:
    """The present attempt of a node in a frame, from 1."""
    return 1 + sum(len(gate_retries(records, scope, prefix, gate)) for gate in gates_repeating(scope, name))


def current_record(records: RecordsByPath, scope: Scope, prefix: str, name: str) -> NodeRecord | None:
    """The record of the present attempt, if it has begun."""
    return records.get(record_path(prefix, name, current_attempt(records, scope, prefix, name)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A scope that runs. ``prefix`` begins the paths in it, ``before`` those of the iteration before or is empty."""

    scope: Scope
    prefix: str = ""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)
    previous: Mapping[str, Any] = field(default_factory=dict)
    iteration: int = 0
    before: str = ""


TEXT_PORT: Final = "text"
"""The output of a trigger with what somebody said when they started the run."""
FindRecord = Callable[[str], NodeRecord | None]
"""The record of the present attempt of a node of the frame."""


def source_value(frame: Frame, ref: SourceRef, record_of: FindRecord) -> Any:
    """The value at a place; ``output`` of a node without one is its first, and of a trigger its text."""
    if ref.kind == "iteration":
        return frame.iteration
    if ref.kind == "prev":
        return frame.previous.get(ref.port)
    if ref.kind == "input":
        return frame.inputs.get(ref.port)
    record = record_of(ref.node)
    outputs = record.outputs if record else {}
    if ref.port == "output" and "output" not in outputs:
        return (
            outputs.get(TEXT_PORT) if _passes_text(frame.scope.nodes[ref.node]) else next(iter(outputs.values()), None)
        )
    return outputs.get(ref.port)


def _passes_text(node: GraphNode) -> bool:
    """Whether an edge without a handle carries the text: of a trigger, unless it declares outputs of its own alone."""
    return node.type == "trigger" and any(one.name == TEXT_PORT for one in node.outputs)


def node_inputs(frame: Frame, node: GraphNode, record_of: FindRecord) -> dict[str, Any]:
    """What comes into a node: wired values, else constants of a component, else defaults; arrays put together.

    Raises Unfit, naming the input, for a value of another type and for a required one that is not there.
    """
    values = {one.name: one.default for one in node.inputs if one.default is not None}
    values |= getattr(node.settings, "component_inputs", None) or {}
    wired: dict[str, list[Any]] = {}
    for wire in wires_into_node(frame.scope, node):
        wired.setdefault(wire.target.port, []).append(source_value(frame, wire.source, record_of))
    for name, found in wired.items():
        value = found[0] if len(found) == 1 else "\n".join(to_text(one) for one in found)
        if value is not None or name not in values:
            values[name] = value
    for one in node.inputs:
        if one.required and values.get(one.name) is None:
            raise ConversionError(f"the required input “{one.name}” is missing")
    try:
        return merge_array_ports(node.inputs, convert_ports(node.inputs, values))
    except ConversionError as error:
        raise ConversionError(f"the input {error}") from error


def wires_into_node(scope: Scope, node: GraphNode) -> tuple[Wire, ...]:
    """The wires that end at a node."""
    return scope.incoming[node.id]


def frame_results(frame: Frame, kind: str, record_of: FindRecord) -> dict[str, Any]:
    """What has come to the edge of the frame: of ``output``, ``current`` or ``continue``."""
    return {wire.target.port: source_value(frame, wire.source, record_of) for wire in frame.scope.into(kind)}


def leaf_outputs(frame: Frame, record_of: FindRecord) -> dict[str, Any]:
    """What the last nodes gave, of a component without an interface; with several, each under its label."""
    leaves = [frame.scope.nodes[name] for name in frame.scope.leaves]
    found: dict[str, Any] = {}
    for node in leaves:
        record, prefix = record_of(node.id), f"{node.label}_" if len(leaves) > 1 else ""
        found |= {f"{prefix}{name}": value for name, value in (record.outputs if record else {}).items()}
    return found


def convert_declared_outputs(ports: tuple[Port, ...], values: Mapping[str, Any]) -> dict[str, Any]:
    """All declared outputs, each of its type, and the others as they are. Raises Unfit."""
    return convert_ports(ports, dict.fromkeys(one.name for one in ports) | dict(values))

"""The records of a run: one for each time a node ran, its attempts, and the values within one frame."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from sessions_app.workflows.language.graph import GraphNode, Scope, SourceRef, WorkflowGraph
from sessions_app.workflows.language.limits import MAX_NODE_VALUES
from sessions_app.workflows.language.schema import Port, merge_array_ports, port_named
from sessions_app.workflows.language.values import ConversionError, to_text
from sessions_app.workflows.nodes import convert_ports

ITERATION: Final = "iteration"
PATH_STEP: Final = re.compile(r"(?P<id>[^#\[\]/]+)(#\d+)?(\[(?P<iteration>\d+)\])?\Z")
"""One step of a record path: node, attempt (``#2``) and iteration (``[3]``)."""


class NodeState(StrEnum):
    """The state of one node run."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    RETRIED = "retried"
    """A gate that was not passed, so the nodes before it run again."""
    SKIPPED = "skipped"
    """It did not begin, because a node before it failed."""
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """One node run. ``request`` is the work outside the engine that it needs; ``{}`` for none.

    ``iteration`` is the current iteration of a loop, or the number of an iteration record. ``flawed`` means that a node
    inside it failed, but was allowed to (``continueOnFailure``).
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
        """Whether the record has its final state."""
        return self.state != NodeState.RUNNING

    @property
    def is_at_work(self) -> bool:
        """Whether the record waits for work outside the engine."""
        return self.state == NodeState.RUNNING and bool(self.request)


def record_path(prefix: str, node: str, attempt: int) -> str:
    """Return the path of a node in a frame; ``attempt`` counts from 1."""
    if attempt == 1:
        return f"{prefix}{node}"
    return f"{prefix}{node}#{attempt}"


def node_of_path(workflow: WorkflowGraph, path: str) -> GraphNode:
    """Return the node of a record. Raises KeyError for a path that does not belong to the workflow."""
    first, *others = path.split("/")
    node = _node_of_step(workflow.root, first)
    for step in others:
        node = _node_of_step(node.body, step)
    return node


def _node_of_step(scope: Scope | None, step: str) -> GraphNode:
    found = PATH_STEP.match(step)
    if scope is None or found is None:
        raise KeyError(step)
    return scope.nodes[found["id"]]


def gates_repeating(scope: Scope, name: str) -> list[GraphNode]:
    """Return the gates whose retry runs this node again."""
    return [scope.nodes[gate] for gate in scope.gates if name in scope.nodes[gate].reset]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A scope that is being run: the workflow, a component, or one iteration of a loop.

    ``prefix`` begins the paths of its records, ``before`` those of the previous iteration (“” if there is none).
    """

    scope: Scope
    prefix: str = ""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)
    previous: Mapping[str, Any] = field(default_factory=dict)
    iteration: int = 0
    before: str = ""


TEXT_PORT: Final = "text"
"""The output of a trigger that holds the text with which the run was started."""
FindRecord = Callable[[str], NodeRecord | None]
"""Returns the record of the current attempt of a node of the frame."""


def source_value(frame: Frame, ref: SourceRef, record_of: FindRecord) -> Any:
    """Return the value of a wire's source.

    For a node without an output ``output``, that port means its first output, and for a trigger its text.
    """
    if ref.kind == "iteration":
        return frame.iteration
    if ref.kind == "prev":
        return frame.previous.get(ref.port)
    if ref.kind == "input":
        return frame.inputs.get(ref.port)
    record = record_of(ref.node)
    outputs = record.outputs if record else {}
    if ref.port == "output" and "output" not in outputs:
        node = frame.scope.nodes[ref.node]
        if node.type == "trigger" and port_named(node.outputs, TEXT_PORT):
            return outputs.get(TEXT_PORT)
        return next(iter(outputs.values()), None)
    return outputs.get(ref.port)


def node_inputs(frame: Frame, node: GraphNode, record_of: FindRecord) -> dict[str, Any]:
    """Return the inputs of a node: connected values, else values of ``componentInputs``, else defaults.

    Several edges at one input join their values with newlines, and array elements are collected into arrays. Raises
    ConversionError, naming the input, for a value of another type, for a required value that is missing, and for
    inputs that are together too large.
    """
    values = {port.name: port.default for port in node.inputs if port.default is not None}
    values |= getattr(node.settings, "component_inputs", None) or {}
    wired: dict[str, list[Any]] = {}
    for wire in frame.scope.incoming[node.id]:
        wired.setdefault(wire.target.port, []).append(source_value(frame, wire.source, record_of))
    for name, incoming in wired.items():
        value = incoming[0]
        if len(incoming) > 1:
            value = _join_lines(incoming)
        if value is not None or name not in values:
            values[name] = value
    for port in node.inputs:
        if port.required and values.get(port.name) is None:
            raise ConversionError(f"the required input “{port.name}” is missing")
    _require_bounded(values)
    try:
        return merge_array_ports(node.inputs, convert_ports(node.inputs, values))
    except ConversionError as error:
        raise ConversionError(f"the input {error}") from error


def _join_lines(values: list[Any]) -> str:
    """Join values as texts, one per line. Measured first: joined in a loop, texts can double with each iteration."""
    _require_bounded(values)
    return "\n".join(to_text(value) for value in values)


def too_large(label: str, values: Any) -> str:
    """Return what is wrong with values of a node run that are together too large; “” for others."""
    if size_of_value(values, MAX_NODE_VALUES) <= MAX_NODE_VALUES:
        return ""
    return (
        f"the {label} of the step are larger than {MAX_NODE_VALUES >> 20} MiB; "
        "pass less from iteration to iteration, or write it to a file of the workspace"
    )


def _require_bounded(values: Any) -> None:
    if problem := too_large("inputs", values):
        raise ConversionError(problem)


def with_bounded_outputs(record: NodeRecord) -> NodeRecord:
    """Return the record, or a failed one if its outputs are too large; only the ids that a later node needs stay."""
    problem = too_large("outputs", record.outputs)
    if not problem:
        return record
    kept = {name: value for name, value in record.outputs.items() if name in {"sessionId", "exitCode"}}
    return replace(record, state=NodeState.FAILED, outputs=kept, error=problem)


def size_of_value(value: Any, limit: int) -> int:
    """Return about how many characters a value has as JSON; counting stops soon after ``limit``.

    Values can share parts, and a shared part counts each time it occurs, as it does in JSON. The limit therefore
    bounds the time as well, even for lists of lists that double with each level.
    """
    size, left = 0, [value]
    while left and size <= limit:
        part = left.pop()
        if isinstance(part, str):
            size += len(part) + 2
            continue
        size += 4
        if isinstance(part, Mapping):
            size += sum(map(len, part))
            left.extend(part.values())
        elif isinstance(part, list | tuple):
            size += len(part)
            left.extend(part)
    return size


def frame_results(frame: Frame, kind: str, record_of: FindRecord) -> dict[str, Any]:
    """Return the values at the border of the frame, for targets of a kind: ``output``, ``current`` or ``continue``."""
    return {wire.target.port: source_value(frame, wire.source, record_of) for wire in frame.scope.into(kind)}


def leaf_outputs(frame: Frame, record_of: FindRecord) -> dict[str, Any]:
    """Return the outputs of the last nodes, for a component without an interface.

    With several last nodes, the label of each is the prefix of its output names.
    """
    leaves = [frame.scope.nodes[name] for name in frame.scope.leaves]
    found: dict[str, Any] = {}
    for node in leaves:
        record = record_of(node.id)
        if record is None:
            continue
        prefix = f"{node.label}_" if len(leaves) > 1 else ""
        for name, value in record.outputs.items():
            found[f"{prefix}{name}"] = value
    return found


def convert_declared_outputs(ports: tuple[Port, ...], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return all declared outputs converted to their types, and other values unchanged. Raises ConversionError."""
    return convert_ports(ports, dict.fromkeys(port.name for port in ports) | dict(values))

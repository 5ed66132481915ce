"""The values in one frame of a run: one iteration, one component, or the whole workflow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sessions_app.workflows.graph import Node, Ref, Scope, Wire
from sessions_app.workflows.nodes import fitted
from sessions_app.workflows.ports import gathered
from sessions_app.workflows.records import Record
from sessions_app.workflows.schema import Port
from sessions_app.workflows.values import Unfit, to_text


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


TEXT: Final = "text"
"""The output of a trigger with what somebody said when they started the run."""
RecordOf = Callable[[str], Record | None]
"""The record of the present attempt of a node of the frame."""


def value_of(frame: Frame, ref: Ref, record_of: RecordOf) -> Any:
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
        return outputs.get(TEXT) if _gives_text(frame.scope.nodes[ref.node]) else next(iter(outputs.values()), None)
    return outputs.get(ref.port)


def _gives_text(node: Node) -> bool:
    """Whether an edge without a handle carries the text: of a trigger, unless it declares outputs of its own alone."""
    return node.type == "trigger" and any(one.name == TEXT for one in node.outputs)


def inputs_of(frame: Frame, node: Node, record_of: RecordOf) -> dict[str, Any]:
    """What comes into a node: wired values, else constants of a component, else defaults; arrays put together.

    Raises Unfit, naming the input, for a value of another type and for a required one that is not there.
    """
    values = {one.name: one.default for one in node.inputs if one.default is not None}
    values |= getattr(node.settings, "component_inputs", None) or {}
    wired: dict[str, list[Any]] = {}
    for wire in node_wires(frame.scope, node):
        wired.setdefault(wire.target.port, []).append(value_of(frame, wire.source, record_of))
    for name, found in wired.items():
        value = found[0] if len(found) == 1 else "\n".join(to_text(one) for one in found)
        if value is not None or name not in values:
            values[name] = value
    for one in node.inputs:
        if one.required and values.get(one.name) is None:
            raise Unfit(f"the required input “{one.name}” is missing")
    try:
        return gathered(node.inputs, fitted(node.inputs, values))
    except Unfit as error:
        raise Unfit(f"the input {error}") from error


def node_wires(scope: Scope, node: Node) -> tuple[Wire, ...]:
    """The wires that end at a node."""
    return scope.incoming[node.id]


def results(frame: Frame, kind: str, record_of: RecordOf) -> dict[str, Any]:
    """What has come to the edge of the frame: of ``output``, ``current`` or ``continue``."""
    return {wire.target.port: value_of(frame, wire.source, record_of) for wire in frame.scope.into(kind)}


def last_outputs(frame: Frame, record_of: RecordOf) -> dict[str, Any]:
    """What the last nodes gave, of a component without an interface; with several, each under its label."""
    leaves = [frame.scope.nodes[name] for name in frame.scope.leaves]
    found: dict[str, Any] = {}
    for node in leaves:
        record, prefix = record_of(node.id), f"{node.label}_" if len(leaves) > 1 else ""
        found |= {f"{prefix}{name}": value for name, value in (record.outputs if record else {}).items()}
    return found


def declared(ports: tuple[Port, ...], values: Mapping[str, Any]) -> dict[str, Any]:
    """All declared outputs, each of its type, and the others as they are. Raises Unfit."""
    return fitted(ports, dict.fromkeys(one.name for one in ports) | dict(values))

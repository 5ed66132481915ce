"""Check nodes and wires of a well-formed file for errors and probable mistakes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from sessions_app.workflows.language.diagnostics import DiagnosticCollector, PathInFile
from sessions_app.workflows.language.graph import HIDDEN_PORT, GraphNode, Scope, TargetRef, Wire
from sessions_app.workflows.language.schema import Port, array_element_of, port_named
from sessions_app.workflows.nodes import NodeType, type_of

ScopeKind = Literal["workflow", "loop", "component"]
_DONE_WORDS: Final = re.compile(
    r"(approved|passed|done|ok|okay|valid|success|complete|completed|finished|ready)\Z", re.IGNORECASE
)
_COMPATIBLE_TYPES: Final = (
    {"string", "file"},
    {"json", "files"},
    {"string", "json"},
    {"string", "number"},
    {"string", "boolean"},
)


def check_node(node: GraphNode, kind: NodeType, diagnostics: DiagnosticCollector, place: PathInFile) -> None:
    """Check the settings of a node by the rules of its type, and its ports."""
    for issue in kind.check(node):
        report = diagnostics.error if issue.is_error else diagnostics.warning
        report(issue.code, issue.message, issue.fix, (*place, *issue.key), node.id, below=issue.below)
    for side, ports in (("inputs", node.settings.inputs), ("outputs", node.settings.outputs)):
        counts = Counter(port.name for port in ports or ())
        repeated = [name for name, count in counts.items() if count > 1]
        for name in sorted(repeated):
            diagnostics.error(
                "port", f"two {side} have the name “{name}”", "Rename one of them.", (*place, side), node.id
            )
        for port in ports or ():
            _check_port(node, port, diagnostics, (*place, side))


def _check_port(node: GraphNode, port: Port, diagnostics: DiagnosticCollector, place: PathInFile) -> None:
    if port.name.startswith(HIDDEN_PORT):
        diagnostics.error(
            "port", f"“{port.name}” is not a valid port name", f"Do not begin it with “{HIDDEN_PORT}”.", place, node.id
        )
    if port.extract and port.extract.type == "regex":
        try:
            re.compile(port.extract.pattern)
        except (re.error, RecursionError, OverflowError) as error:
            diagnostics.error(
                "pattern",
                f"the pattern of “{port.name}” is not a valid regular expression: {error}",
                "Correct the pattern.",
                place,
                node.id,
            )


def template_inputs_of(node: GraphNode) -> frozenset[str]:
    """Return the inputs that a template of the node can use even if no edge ends at them."""
    names = {port.name for port in node.inputs} | {port.array_parent for port in node.inputs if port.array_parent}
    return frozenset(names | {"feedback", "retryCount"})


def check_continue(
    owner: str, into: Iterable[Wire], diagnostics: DiagnosticCollector, place: PathInFile, *, negated: bool
) -> None:
    """Warn of a loop that continues while its work is approved, which is probably the wrong way round."""
    for wire in into:
        if not negated and _DONE_WORDS.match(wire.source.port):
            message = f"the loop continues while “{wire.source.port}” is true, and ends when it is false"
            diagnostics.warning(
                "inverted_continue",
                message,
                "To end it when the value is true, add negate: true to the continue slot.",
                place,
                owner,
            )


@dataclass(frozen=True, slots=True)
class _DeclaredPorts:
    """The declared ports of a node, by name."""

    inputs: Mapping[str, Port]
    outputs: Mapping[str, Port]

    @classmethod
    def of(cls, node: GraphNode) -> _DeclaredPorts:
        # Reversed, because the first of two ports with the same name wins.
        return cls(
            {port.name: port for port in reversed(node.inputs)}, {port.name: port for port in reversed(node.outputs)}
        )


def check_scope(scope: Scope, diagnostics: DiagnosticCollector, at: Mapping[str, PathInFile]) -> None:
    """Check the wires of one scope, and the inputs of its nodes."""
    ports = {name: _DeclaredPorts.of(node) for name, node in scope.nodes.items()}
    sources = {wire.source.node for wire in scope.wires}
    _check_duplicate_wires(scope, ports, diagnostics, at)
    for name, node in scope.nodes.items():
        incoming = scope.incoming[name]
        for wire in incoming:
            _check_wire(scope, ports, wire, diagnostics, at[name])
        if node.type != "trigger":  # its inputs are passed when the run starts
            _check_required_inputs(node, incoming, diagnostics, at[name])
        _check_unconnected(scope, node, diagnostics, at[name], has_followers=name in sources)


def _has_constant(node: GraphNode, port: str) -> bool:
    return port in (getattr(node.settings, "component_inputs", None) or {})


def _check_required_inputs(
    node: GraphNode, incoming: Iterable[Wire], diagnostics: DiagnosticCollector, place: PathInFile
) -> None:
    wired = {wire.target.port for wire in incoming}
    for port in node.inputs:
        if not port.required or port.default is not None or port.name in wired:
            continue
        if not _has_constant(node, port.name):
            message = f"the input “{port.name}” is required, but has no edge and no default"
            fix = "Connect it, give it a default, or remove “required”."
            diagnostics.warning("required", message, fix, place, node.id)


def _check_duplicate_wires(
    scope: Scope, ports: Mapping[str, _DeclaredPorts], diagnostics: DiagnosticCollector, at: Mapping[str, PathInFile]
) -> None:
    seen: set[object] = set()
    for wire in scope.wires:
        target = wire.target
        if target.port.startswith(HIDDEN_PORT):
            continue
        # An undeclared input takes no particular value: a second edge there only states the order of execution.
        taken = None
        if target.node:
            taken = ports[target.node].inputs.get(target.port)
        if target in seen and (taken is not None or not target.node):
            _report_duplicate_wire(scope, target, taken, diagnostics, at.get(target.node, ()))
        seen.add(target)


def _report_duplicate_wire(
    scope: Scope, target: TargetRef, taken: Port | None, diagnostics: DiagnosticCollector, place: PathInFile
) -> None:
    """Report several edges to one target: texts are joined by lines, of other values only one can be meant."""
    if target.node:
        where = f"the input “{target.port}”"
    else:
        where = f"“{target.port or 'continue'}” of the {scope.kind}"
    fix = "Give each edge its own targetHandle, or combine the values in a function step."
    if taken is not None and taken.type in {"any", "string"}:
        message = f"several edges end at {where}, so their values are joined, one per line"
        diagnostics.warning("double", message, fix, place, target.node)
    else:
        diagnostics.error("double", f"several edges end at {where}", fix, place, target.node)


def _check_wire(
    scope: Scope, ports: Mapping[str, _DeclaredPorts], wire: Wire, diagnostics: DiagnosticCollector, place: PathInFile
) -> None:
    source = scope.nodes.get(wire.source.node)
    target = scope.nodes[wire.target.node]
    given = None
    if source:
        given = ports[source.id].outputs.get(wire.source.port)
        if given is None and not _can_produce(source, wire.source.port):
            message = f"“{source.id}” has no output “{wire.source.port}”"
            diagnostics.warning("port", message, "Add it to the outputs of that step.", place, target.id)
    taken = ports[target.id].inputs.get(wire.target.port)
    hidden = wire.target.port.startswith(HIDDEN_PORT) or array_element_of(wire.target.port)
    kind = type_of(target)
    own = kind.is_open or wire.target.port == "input" or port_named(kind.inputs, wire.target.port) is not None
    if taken is None and not own and not hidden:
        diagnostics.warning(
            "port", f"the step has no input “{wire.target.port}”", "Add it to its inputs.", place, target.id
        )
    if given and taken and not _are_compatible(given.type, taken.type):
        message = f"“{given.name}” has type {given.type}, but the input “{taken.name}” has type {taken.type}"
        diagnostics.warning("type", message, "Change one of the types.", place, target.id)


def _can_produce(node: GraphNode, port: str) -> bool:
    """Return whether a node can have a value at an output that it does not declare."""
    kind = type_of(node)
    own = kind.is_open or port_named(kind.outputs, port) is not None
    return own or port.startswith(HIDDEN_PORT) or (port == "output" and bool(node.outputs))


def _are_compatible(given: str, taken: str) -> bool:
    return given == taken or "any" in {given, taken} or {given, taken} in _COMPATIBLE_TYPES or taken == "string"


def _check_unconnected(
    scope: Scope, node: GraphNode, diagnostics: DiagnosticCollector, place: PathInFile, *, has_followers: bool
) -> None:
    if node.type == "trigger" and not has_followers and len(scope.nodes) > 1:
        diagnostics.warning("orphan", "no step follows the trigger", "Add an edge from it.", place, node.id)
    elif node.type != "trigger" and not has_followers and not scope.incoming[node.id] and len(scope.nodes) > 1:
        diagnostics.warning("orphan", "the step has no edges", "Add an edge, or remove the step.", place, node.id)

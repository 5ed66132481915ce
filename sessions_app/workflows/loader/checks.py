"""What is wrong, or hardly meant so, with nodes and wires that have the right shape."""

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


def check_node(node: GraphNode, kind: NodeType, findings: DiagnosticCollector, place: PathInFile) -> None:
    """What the type has to say of the node."""
    for complaint in kind.check(node):
        say = findings.error if complaint.is_error else findings.warning
        say(complaint.code, complaint.message, complaint.fix, (*place, *complaint.key), node.id, below=complaint.below)
    for side, ports in (("inputs", node.settings.inputs), ("outputs", node.settings.outputs)):
        counts = Counter(one.name for one in ports or ())
        for name in sorted(name for name, count in counts.items() if count > 1):
            findings.error("port", f"there are two {side} “{name}”", "Rename one.", (*place, side), node.id)
        for one in ports or ():
            _check_port(node, one, findings, (*place, side))


def _check_port(node: GraphNode, port: Port, findings: DiagnosticCollector, place: PathInFile) -> None:
    if port.name.startswith(HIDDEN_PORT):
        findings.error("port", f"“{port.name}” is no name", f"Do not begin it with {HIDDEN_PORT}.", place, node.id)
    if port.extract and port.extract.type == "regex":
        try:
            re.compile(port.extract.pattern)
        except (re.error, RecursionError, OverflowError) as error:
            findings.error("pattern", f"the pattern of “{port.name}” is none: {error}", "Correct it.", place, node.id)


def template_inputs_of(node: GraphNode) -> frozenset[str]:
    """The inputs that a template of the node can name whether an edge ends at them or not."""
    names = {one.name for one in node.inputs} | {one.array_parent for one in node.inputs if one.array_parent}
    return frozenset(names | {"feedback", "retryCount"})


def check_continue(
    owner: str, into: Iterable[Wire], findings: DiagnosticCollector, place: PathInFile, *, negated: bool
) -> None:
    """A loop that goes on when the work is approved is hardly meant."""
    for wire in into:
        if not negated and _DONE_WORDS.match(wire.source.port):
            message = f"the loop goes on while “{wire.source.port}” is true, and ends when it is false"
            findings.warning("inverted_continue", message, "Add negate: true to the continue slot.", place, owner)


@dataclass(frozen=True, slots=True)
class _DeclaredPorts:
    """The declared ports of a node by name."""

    inputs: Mapping[str, Port]
    outputs: Mapping[str, Port]

    @classmethod
    def of(cls, node: GraphNode) -> _DeclaredPorts:
        # Backwards, as of two with one name the first counts.
        return cls({one.name: one for one in reversed(node.inputs)}, {one.name: one for one in reversed(node.outputs)})


def check_scope(scope: Scope, findings: DiagnosticCollector, at: Mapping[str, PathInFile]) -> None:
    """The wires of one scope."""
    ports = {name: _DeclaredPorts.of(node) for name, node in scope.nodes.items()}
    leading_on = {wire.source.node for wire in scope.wires}
    _check_duplicate_wires(scope, ports, findings, at)
    for name, node in scope.nodes.items():
        incoming = scope.incoming[name]
        for wire in incoming:
            _check_wire(scope, ports, wire, findings, at[name])
        wired = {wire.target.port for wire in incoming}
        for one in node.inputs if node.type != "trigger" else ():  # whoever starts it gives those
            if one.required and one.default is None and one.name not in wired and not _has_constant(node, one.name):
                fix = "Wire it, give it a default, or leave required out."
                findings.warning(
                    "required", f"the input “{one.name}” is required, and nothing comes in", fix, at[name], name
                )
        _check_unconnected(scope, node, findings, at[name], leads_on=name in leading_on)


def _has_constant(node: GraphNode, port: str) -> bool:
    return port in (getattr(node.settings, "component_inputs", None) or {})


def _check_duplicate_wires(
    scope: Scope, ports: Mapping[str, _DeclaredPorts], findings: DiagnosticCollector, at: Mapping[str, PathInFile]
) -> None:
    seen: set[object] = set()
    for wire in scope.wires:
        target = wire.target
        if target.port.startswith(HIDDEN_PORT):
            continue
        # At an input that is not declared no value is taken: a second edge says only what comes first.
        taken = ports[target.node].inputs.get(target.port) if target.node else None
        if target in seen and (taken is not None or not target.node):
            _report_duplicate_wire(scope, target, taken, findings, at.get(target.node, ()))
        seen.add(target)


def _report_duplicate_wire(
    scope: Scope, target: TargetRef, taken: Port | None, findings: DiagnosticCollector, place: PathInFile
) -> None:
    """Several texts come in line by line; of all else only one can be meant."""
    where = f"the input “{target.port}”" if target.node else f"“{target.port or 'continue'}” of the {scope.kind}"
    fix = "Give each edge a targetHandle of its own, or join them with a function."
    if taken is not None and taken.type in {"any", "string"}:
        message = f"several edges end at {where}, so their values come in together, a line each"
        findings.warning("double", message, fix, place, target.node)
    else:
        findings.error("double", f"several edges end at {where}", fix, place, target.node)


def _check_wire(
    scope: Scope, ports: Mapping[str, _DeclaredPorts], wire: Wire, findings: DiagnosticCollector, place: PathInFile
) -> None:
    source = scope.nodes.get(wire.source.node)
    target = scope.nodes[wire.target.node]
    given = ports[source.id].outputs.get(wire.source.port) if source else None
    taken = ports[target.id].inputs.get(wire.target.port)
    if source and given is None and not _can_produce(source, wire.source.port):
        message = f"“{source.id}” has no output “{wire.source.port}”"
        findings.warning("port", message, "Add it to its outputs.", place, target.id)
    hidden = wire.target.port.startswith(HIDDEN_PORT) or array_element_of(wire.target.port)
    kind = type_of(target)
    own = kind.is_open or wire.target.port == "input" or port_named(kind.inputs, wire.target.port) is not None
    if taken is None and not own and not hidden:
        findings.warning("port", f"it has no input “{wire.target.port}”", "Add it to its inputs.", place, target.id)
    if given and taken and not _are_compatible(given.type, taken.type):
        message = f"“{given.name}” is a {given.type}, and the input “{taken.name}” wants a {taken.type}"
        findings.warning("type", message, "Change one of the types.", place, target.id)


def _can_produce(node: GraphNode, port: str) -> bool:
    """Whether a value may come out there that no port is declared for."""
    kind = type_of(node)
    own = kind.is_open or port_named(kind.outputs, port) is not None
    return own or port.startswith(HIDDEN_PORT) or (port == "output" and bool(node.outputs))


def _are_compatible(given: str, taken: str) -> bool:
    return given == taken or "any" in {given, taken} or {given, taken} in _COMPATIBLE_TYPES or taken == "string"


def _check_unconnected(
    scope: Scope, node: GraphNode, findings: DiagnosticCollector, place: PathInFile, *, leads_on: bool
) -> None:
    if node.type == "trigger" and not leads_on and len(scope.nodes) > 1:
        findings.warning("orphan", "nothing follows the trigger", "Add an edge.", place, node.id)
    elif node.type != "trigger" and not leads_on and not scope.incoming[node.id] and len(scope.nodes) > 1:
        findings.warning("orphan", "no edge leads to it or from it", "Add an edge, or remove it.", place, node.id)

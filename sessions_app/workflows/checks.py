"""What is wrong, or hardly meant so, with nodes and wires that have the right shape."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, Literal

from sessions_app.workflows.findings import Findings
from sessions_app.workflows.graph import HIDDEN, Node, Scope, Slot, Wire
from sessions_app.workflows.nodes import NodeType, type_of
from sessions_app.workflows.ports import element_of, named
from sessions_app.workflows.reading import Place
from sessions_app.workflows.schema import Port

ScopeKind = Literal["workflow", "loop", "component"]
_SAYS_DONE: Final = re.compile(
    r"(approved|passed|done|ok|okay|valid|success|complete|completed|finished|ready)\Z", re.IGNORECASE
)
_ALIKE: Final = ({"string", "file"}, {"json", "files"}, {"string", "json"}, {"string", "number"}, {"string", "boolean"})


def check_settings(node: Node, kind: NodeType, findings: Findings, place: Place) -> None:
    """What the type has to say of the node."""
    for complaint in kind.check(node):
        say = findings.error if complaint.is_error else findings.warning
        say(complaint.code, complaint.message, complaint.fix, (*place, *complaint.key), node.id, below=complaint.below)
    for side, ports in (("inputs", node.settings.inputs), ("outputs", node.settings.outputs)):
        names = [one.name for one in ports or ()]
        for name in sorted({name for name in names if names.count(name) > 1}):
            findings.error("port", f"there are two {side} “{name}”", "Rename one.", (*place, side), node.id)
        for one in ports or ():
            _check_port(node, one, findings, (*place, side))


def _check_port(node: Node, port: Port, findings: Findings, place: Place) -> None:
    if port.name.startswith(HIDDEN):
        findings.error("port", f"“{port.name}” is no name", f"Do not begin it with {HIDDEN}.", place, node.id)
    if port.extract and port.extract.type == "regex":
        try:
            re.compile(port.extract.pattern)
        except (re.error, RecursionError, OverflowError) as error:
            findings.error("pattern", f"the pattern of “{port.name}” is none: {error}", "Correct it.", place, node.id)


def has_input(node: Node, port: str, wires: Mapping[str, list[Wire]]) -> bool:
    """Whether a template of the node can name this input."""
    wired = any(wire.target.node == node.id and wire.target.port == port for scope in wires.values() for wire in scope)
    array = any(one.array_parent == port for one in node.inputs)
    return wired or array or named(node.inputs, port) is not None or port in {"feedback", "retryCount"}


def check_continue(owner: str, into: Iterable[Wire], findings: Findings, place: Place, *, negated: bool) -> None:
    """A loop that goes on when the work is approved is hardly meant."""
    for wire in into:
        if not negated and _SAYS_DONE.match(wire.source.port):
            message = f"the loop goes on while “{wire.source.port}” is true, and ends when it is false"
            findings.warning("inverted_continue", message, "Add negate: true to the continue slot.", place, owner)


def check_scope(scope: Scope, findings: Findings, at: Mapping[str, Place]) -> None:
    """The wires of one scope."""
    _check_doubles(scope, findings, at)
    for name, node in scope.nodes.items():
        incoming = scope.incoming[name]
        for wire in incoming:
            _check_wire(scope, wire, findings, at[name])
        wired = {wire.target.port for wire in incoming}
        for one in node.inputs:
            if one.required and one.default is None and one.name not in wired and not _has_constant(node, one.name):
                fix = "Wire it, give it a default, or leave required out."
                findings.warning(
                    "required", f"the input “{one.name}” is required, and nothing comes in", fix, at[name], name
                )
        _check_alone(scope, node, findings, at[name])


def _has_constant(node: Node, port: str) -> bool:
    return port in (getattr(node.settings, "component_inputs", None) or {})


def _check_doubles(scope: Scope, findings: Findings, at: Mapping[str, Place]) -> None:
    seen: set[object] = set()
    for wire in scope.wires:
        target = wire.target
        if target.port.startswith(HIDDEN):
            continue
        if target in seen and _counts(scope, target.node, target.port):
            _say_double(scope, target, findings, at.get(target.node, ()))
        seen.add(target)


def _say_double(scope: Scope, target: Slot, findings: Findings, place: Place) -> None:
    """Several texts come in line by line; of all else only one can be meant."""
    taken = named(scope.nodes[target.node].inputs, target.port) if target.node else None
    where = f"the input “{target.port}”" if target.node else f"“{target.port or 'continue'}” of the {scope.kind}"
    fix = "Give each edge a targetHandle of its own, or join them with a function."
    if taken is not None and taken.type in {"any", "string"}:
        message = f"several edges end at {where}, so their values come in together, a line each"
        findings.warning("double", message, fix, place, target.node)
    else:
        findings.error("double", f"several edges end at {where}", fix, place, target.node)


def _counts(scope: Scope, node: str, port: str) -> bool:
    """Whether a value is taken there; a second edge that only says what comes first does no harm."""
    return not node or named(scope.nodes[node].inputs, port) is not None


def _check_wire(scope: Scope, wire: Wire, findings: Findings, place: Place) -> None:
    source = scope.nodes.get(wire.source.node)
    target = scope.nodes[wire.target.node]
    given = named(source.outputs, wire.source.port) if source else None
    taken = named(target.inputs, wire.target.port)
    if source and given is None and not _gives(source, wire.source.port):
        message = f"“{source.id}” has no output “{wire.source.port}”"
        findings.warning("port", message, "Add it to its outputs.", place, target.id)
    hidden = wire.target.port.startswith(HIDDEN) or element_of(wire.target.port)
    kind = type_of(target)
    own = kind.is_open or wire.target.port == "input" or named(kind.inputs, wire.target.port) is not None
    if taken is None and not own and not hidden:
        findings.warning("port", f"it has no input “{wire.target.port}”", "Add it to its inputs.", place, target.id)
    if given and taken and not _fits(given.type, taken.type):
        message = f"“{given.name}” is a {given.type}, and the input “{taken.name}” wants a {taken.type}"
        findings.warning("type", message, "Change one of the types.", place, target.id)


def _gives(node: Node, port: str) -> bool:
    """Whether a value may come out there that no port is declared for."""
    kind = type_of(node)
    own = kind.is_open or named(kind.outputs, port) is not None
    return own or port.startswith(HIDDEN) or (port == "output" and bool(node.outputs))


def _fits(given: str, taken: str) -> bool:
    return given == taken or "any" in {given, taken} or {given, taken} in _ALIKE or taken == "string"


def _check_alone(scope: Scope, node: Node, findings: Findings, place: Place) -> None:
    leads_on = any(wire.source.node == node.id for wire in scope.wires)
    if node.type == "trigger" and not leads_on and len(scope.nodes) > 1:
        findings.warning("orphan", "nothing follows the trigger", "Add an edge.", place, node.id)
    elif node.type != "trigger" and not leads_on and not scope.incoming[node.id] and len(scope.nodes) > 1:
        findings.warning("orphan", "no edge leads to it or from it", "Add an edge, or remove it.", place, node.id)

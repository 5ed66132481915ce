"""The internal form of a workflow as JSON and back, for the process that loads it apart from everything else.

A component that is used several times is one scope in both forms.
"""

from __future__ import annotations

from typing import Any

from sessions_app.workflows.graph import Node, Ref, Scope, Slot, Wire, Workflow
from sessions_app.workflows.nodes import node_types
from sessions_app.workflows.schema import Part, Port


def to_document(workflow: Workflow) -> dict[str, Any]:
    """The workflow as values of JSON."""
    scopes: list[dict[str, Any]] = []
    _add_scope(workflow.root, scopes, {})
    return {
        "name": workflow.name,
        "description": workflow.description,
        "max_concurrent": workflow.max_concurrent,
        "inputs": [_part_document(port) for port in workflow.inputs],
        "scopes": scopes,
    }


def from_document(document: dict[str, Any]) -> Workflow:
    """What ``to_document`` was given. Raises ValueError, KeyError or TypeError for anything else."""
    scopes: list[Scope] = []
    for one in document["scopes"]:
        scopes.append(_scope(one, scopes))
    return Workflow(
        name=document["name"],
        description=document["description"],
        root=scopes[-1],
        max_concurrent=document["max_concurrent"],
        inputs=tuple(Port.model_validate(port) for port in document["inputs"]),
    )


def _add_scope(scope: Scope, scopes: list[dict[str, Any]], places: dict[int, int]) -> int:
    """The index of a scope, which comes after those within it."""
    if id(scope) not in places:
        nodes = [_node_document(node, scopes, places) for node in scope.nodes.values()]
        places[id(scope)] = len(scopes)
        scopes.append(
            {
                "kind": scope.kind,
                "nodes": nodes,
                "wires": [_wire_document(wire) for wire in scope.wires],
                "order": scope.order,
                "waits_for": {name: sorted(sources) for name, sources in scope.waits_for.items()},
                "gates": scope.gates,
                "negated": scope.negated,
                "count": scope.count,
            }
        )
    return places[id(scope)]


def _scope(document: dict[str, Any], scopes: list[Scope]) -> Scope:
    wires = tuple(_wire(one) for one in document["wires"])
    incoming: dict[str, list[Wire]] = {one["id"]: [] for one in document["nodes"]}
    for wire in wires:
        if wire.target.node:
            incoming[wire.target.node].append(wire)
    return Scope(
        kind=document["kind"],
        nodes={one["id"]: _node(one, scopes) for one in document["nodes"]},
        wires=wires,
        order=tuple(document["order"]),
        waits_for={name: frozenset(sources) for name, sources in document["waits_for"].items()},
        incoming={name: tuple(found) for name, found in incoming.items()},
        gates=tuple(document["gates"]),
        negated=document["negated"],
        count=document["count"],
    )


def _node_document(node: Node, scopes: list[dict[str, Any]], places: dict[int, int]) -> dict[str, Any]:
    return {
        "id": node.id,
        "type": node.type,
        "label": node.label,
        "settings": _part_document(node.settings),
        "inputs": [_part_document(port) for port in node.inputs],
        "outputs": [_part_document(port) for port in node.outputs],
        "line": node.line,
        "body": None if node.body is None else _add_scope(node.body, scopes, places),
        "references": [[*asked, hidden] for asked, hidden in node.references.items()],
        "reset": sorted(node.reset),
    }


def _node(document: dict[str, Any], scopes: list[Scope]) -> Node:
    body = document["body"]
    return Node(
        id=document["id"],
        type=document["type"],
        label=document["label"],
        settings=node_types()[document["type"]].settings.model_validate(document["settings"]),
        inputs=tuple(Port.model_validate(port) for port in document["inputs"]),
        outputs=tuple(Port.model_validate(port) for port in document["outputs"]),
        line=document["line"],
        body=None if body is None else scopes[body],
        references={(asked, port): hidden for asked, port, hidden in document["references"]},
        reset=frozenset(document["reset"]),
    )


def _part_document(part: Part) -> dict[str, Any]:
    return part.model_dump(mode="json", by_alias=True, exclude_unset=True)


def _wire_document(wire: Wire) -> list[str]:
    source, target = wire.source, wire.target
    return [source.kind, source.port, source.node, target.kind, target.port, target.node, wire.edge]


def _wire(document: list[Any]) -> Wire:
    source_kind, source_port, source_node, target_kind, target_port, target_node, edge = document
    return Wire(Ref(source_kind, source_port, source_node), Slot(target_kind, target_port, target_node), edge)

"""Convert workflow graphs to JSON and back, and generate the JSON Schema of workflow files for editors."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from sessions_app.workflows.language.graph import GraphNode, Scope, SourceRef, TargetRef, Wire, WorkflowGraph
from sessions_app.workflows.language.schema import Part, Port, WorkflowFile
from sessions_app.workflows.nodes import node_types


def graph_to_json(workflow: WorkflowGraph) -> dict[str, Any]:
    """Return the graph as JSON values, in which a scope that is used several times occurs once."""
    scopes: list[dict[str, Any]] = []
    _add_scope(workflow.root, scopes, {})
    return {
        "name": workflow.name,
        "description": workflow.description,
        "max_concurrent": workflow.max_concurrent,
        "inputs": [_part_document(port) for port in workflow.inputs],
        "scopes": scopes,
    }


def graph_from_json(document: dict[str, Any]) -> WorkflowGraph:
    """Return the graph that ``graph_to_json`` was given. Raises ValueError, KeyError or TypeError for other values."""
    scopes: list[Scope] = []
    for scope in document["scopes"]:
        scopes.append(_scope_from_json(scope, scopes))
    return WorkflowGraph(
        name=document["name"],
        description=document["description"],
        root=scopes[-1],
        max_concurrent=document["max_concurrent"],
        inputs=tuple(Port.model_validate(port) for port in document["inputs"]),
    )


def _add_scope(scope: Scope, scopes: list[dict[str, Any]], indexes: dict[int, int]) -> int:
    """Append a scope after the scopes inside it, unless it is there already; return its index."""
    if id(scope) not in indexes:
        nodes = [_node_document(node, scopes, indexes) for node in scope.nodes.values()]
        indexes[id(scope)] = len(scopes)
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
    return indexes[id(scope)]


def _scope_from_json(document: dict[str, Any], scopes: list[Scope]) -> Scope:
    wires = tuple(_wire_from_json(wire) for wire in document["wires"])
    incoming: dict[str, list[Wire]] = {node["id"]: [] for node in document["nodes"]}
    for wire in wires:
        if wire.target.node:
            incoming[wire.target.node].append(wire)
    return Scope(
        kind=document["kind"],
        nodes={node["id"]: _node_from_json(node, scopes) for node in document["nodes"]},
        wires=wires,
        order=tuple(document["order"]),
        waits_for={name: frozenset(sources) for name, sources in document["waits_for"].items()},
        incoming={name: tuple(found) for name, found in incoming.items()},
        gates=tuple(document["gates"]),
        negated=document["negated"],
        count=document["count"],
    )


def _node_document(node: GraphNode, scopes: list[dict[str, Any]], indexes: dict[int, int]) -> dict[str, Any]:
    return {
        "id": node.id,
        "type": node.type,
        "label": node.label,
        "settings": _part_document(node.settings),
        "inputs": [_part_document(port) for port in node.inputs],
        "outputs": [_part_document(port) for port in node.outputs],
        "line": node.line,
        "body": None if node.body is None else _add_scope(node.body, scopes, indexes),
        "references": [[name, port, hidden] for (name, port), hidden in node.references.items()],
        "reset": sorted(node.reset),
    }


def _node_from_json(document: dict[str, Any], scopes: list[Scope]) -> GraphNode:
    body = document["body"]
    return GraphNode(
        id=document["id"],
        type=document["type"],
        label=document["label"],
        settings=node_types()[document["type"]].settings.model_validate(document["settings"]),
        inputs=tuple(Port.model_validate(port) for port in document["inputs"]),
        outputs=tuple(Port.model_validate(port) for port in document["outputs"]),
        line=document["line"],
        body=None if body is None else scopes[body],
        references={(name, port): hidden for name, port, hidden in document["references"]},
        reset=frozenset(document["reset"]),
    )


def _part_document(part: Part) -> dict[str, Any]:
    return part.model_dump(mode="json", by_alias=True, exclude_unset=True)


def _wire_document(wire: Wire) -> list[str]:
    source, target = wire.source, wire.target
    return [source.kind, source.port, source.node, target.kind, target.port, target.node, wire.edge]


def _wire_from_json(document: list[Any]) -> Wire:
    source_kind, source_port, source_node, target_kind, target_port, target_node, edge = document
    return Wire(
        SourceRef(source_kind, source_port, source_node), TargetRef(target_kind, target_port, target_node), edge
    )


_TITLE = "Kandev workflow"
_DESCRIPTION = "A loop workflow, versions 1 to 3. Written by make docs."


def workflow_json_schema() -> dict[str, Any]:
    """Return the schema of a whole file, in which the type of a node determines its settings."""
    kinds = sorted(node_types().items())
    models: set[type[BaseModel]] = {WorkflowFile}
    models.update(kind.settings for _, kind in kinds)
    by_name = sorted(models, key=lambda model: model.__name__)
    refs, found = models_json_schema([(model, "validation") for model in by_name])
    definitions = found["$defs"]
    conditions = [_settings_condition(name, refs[kind.settings, "validation"]) for name, kind in kinds]
    definitions["Node"]["allOf"] = conditions
    definitions["Node"]["properties"]["type"] = {"enum": [name for name, _ in kinds]}
    schema: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": _TITLE,
        "description": _DESCRIPTION,
    }
    schema |= refs[WorkflowFile, "validation"]
    schema["$defs"] = definitions
    return schema


def _settings_condition(name: str, reference: dict[str, Any]) -> dict[str, Any]:
    """Return the condition for nodes of a type: ``data.nodeType`` names it, or ``type`` if that is missing."""
    data = {"properties": {"nodeType": {"const": name}}, "required": ["nodeType"]}
    inside = {"properties": {"data": data}, "required": ["data"]}
    beside = {
        "properties": {"type": {"const": name}, "data": {"not": {"required": ["nodeType"]}}},
        "required": ["type"],
    }
    return {"if": {"anyOf": [inside, beside]}, "then": {"properties": {"data": reference}}}

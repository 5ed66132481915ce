"""Build checked scopes from the nodes and edges of one body of a file."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Final

from pydantic import ValidationError

from sessions_app.workflows.language.diagnostics import MALFORMED_NODE_TYPE, DiagnosticCollector, PathInFile
from sessions_app.workflows.language.graph import (
    HIDDEN_PORT,
    CycleError,
    GraphNode,
    Scope,
    SourceRef,
    TargetRef,
    Wire,
    descendants_of,
    followers_by_node,
    topological_order,
)
from sessions_app.workflows.language.limits import Budget
from sessions_app.workflows.language.schema import Body, Edge, NodeData, Port
from sessions_app.workflows.language.schema import Node as WrittenNode
from sessions_app.workflows.language.values import INPUTS_NAME, find_references
from sessions_app.workflows.loader import checks
from sessions_app.workflows.loader.wiring import (
    InvalidEdge,
    NodeNames,
    NodePlace,
    TemplateUse,
    WiresByScope,
    Wiring,
    add_legacy_feedback,
    unsatisfiable_templates,
)
from sessions_app.workflows.nodes import NodeType, node_types, ports_of
from sessions_app.workflows.nodes.control_flow import ComponentSettings, GateSettings, LoopSettings

INTERFACE_TYPES: Final = frozenset({"interface-input", "interface-output", "interface-continue"})
IMPLIED_PORTS: Final = frozenset({"iterations", "terminationReason"})
MAX_NESTING: Final = 16
"""Levels of loops within loops."""
MAX_TYPE_NAME: Final = 40
"""Characters of an unknown type name that are compared with the known names (the comparison is quadratic)."""
MAX_CYCLE_SHOWN: Final = 12
"""Nodes of a cycle that an error names."""

FindComponent = Callable[
    [ComponentSettings, PathInFile, str], "tuple[Scope, tuple[Port, ...], tuple[Port, ...]] | None"
]
"""Returns the scope, inputs and outputs of a component; None if an error was reported."""


class ScopeBuilder:
    """Builds the scopes of one body, and reports every problem to the collector."""

    def __init__(
        self, body: Body, place: PathInFile, diagnostics: DiagnosticCollector, component: FindComponent, budget: Budget
    ):
        self._body = body
        self._place = place
        self._diagnostics = diagnostics
        self._component = component
        self._budget = budget
        self._written: dict[str, WrittenNode] = {}
        self._places: dict[str, PathInFile] = {}
        self._types: dict[str, NodeType] = {}
        self._nodes: dict[str, GraphNode] = {}
        self._nodes_in: dict[str, list[str]] = {}
        self._wires: WiresByScope = {}
        self._dropped: set[str] = set()
        """Nodes that were left out because of an error. Nothing is reported about references to them."""
        self._partial: set[str] = set()
        """Scopes that are incomplete because of an error, and loops that may contain the missing part."""

    def build(self, kind: checks.ScopeKind) -> Scope | None:
        """Return the outermost scope of the body; None if it has errors. Raises BudgetExceeded.

        Each step continues with what the previous one left, so that all problems are found at once.
        """
        before = self._diagnostics.errors
        self._read_nodes()
        self._drop(self._check_parents())
        self._wires = self._wiring().wires
        self._nodes = {name: node for name in self._written if (node := self._node(name)) is not None}
        self._drop({name for name, one in self._types.items() if one.name not in INTERFACE_TYPES} - self._nodes.keys())
        self._cut_wires()
        for name in self._nodes:
            self._nodes_in.setdefault(self._scope_of(name), []).append(name)
        self._diagnostics.only_errors = bool(self._partial)
        self._add_templates()
        self._set_resets()
        scope = self._scope("", kind)
        self._diagnostics.only_errors = False
        if self._dropped or self._diagnostics.errors > before:
            return None
        return scope

    def _drop(self, names: set[str]) -> None:
        """Leave out nodes, with everything inside them."""
        self._dropped |= names
        while found := {name for name in self._written if {name, self._scope_of(name)} & self._dropped}:
            for name in found:
                self._partial |= {self._scope_of(name), name}
                del self._written[name]
                self._nodes.pop(name, None)
            self._dropped |= found

    def _cut_wires(self) -> None:
        """Leave out the wires of nodes that were left out."""
        for scope in self._dropped & self._wires.keys():
            del self._wires[scope]
        for scope, wires in self._wires.items():
            kept = {wire: None for wire in wires if not {wire.source.node, wire.target.node} & self._dropped}
            if len(kept) < len(wires):
                self._wires[scope] = kept
                self._partial.add(scope)

    def _read_nodes(self) -> None:
        for index, node in enumerate(self._body.nodes):
            place = (*self._place, "nodes", index)
            if node.id in self._written or node.id in self._dropped:
                self._diagnostics.error(
                    "duplicate_id", f"two steps have the id “{node.id}”", "Rename one of them.", place, node.id
                )
                continue
            word = str(node.data.get("nodeType") or node.type or "")
            kind = node_types().get(word)
            if kind is None:
                if word != MALFORMED_NODE_TYPE or not self._diagnostics.failed():
                    self._unknown_type(word, place, node.id)
                self._dropped.add(node.id)
                self._partial.add(node.parent_id or "")
                continue
            self._written[node.id], self._places[node.id], self._types[node.id] = node, place, kind

    def _unknown_type(self, word: str, place: PathInFile, node: str) -> None:
        near = difflib.get_close_matches(word[:MAX_TYPE_NAME], node_types(), 1)
        if near:
            fix = f"Did you mean “{near[0]}”?"
        else:
            fix = f"Use one of {', '.join(sorted(node_types()))}."
        message = "the step has no type"
        if word:
            message = f"“{word}” is not a step type"
        self._diagnostics.error("node_type", message, fix, place, node)

    def _check_parents(self) -> set[str]:
        """Return the nodes whose parent is invalid. Nodes inside one that was left out are left out with it."""
        bad: set[str] = set()
        for name, node in self._written.items():
            place = (*self._places[name], "parentId")
            parent = node.parent_id
            if not parent or parent in self._dropped:
                continue
            if parent not in self._types or self._types[parent].name != "loop":
                bad.add(name)
                self._diagnostics.error(
                    "parent", f"its parentId “{parent}” is not a loop", "Name a loop, or remove parentId.", place, name
                )
            elif self._depth(name) > MAX_NESTING:
                bad.add(name)
                self._diagnostics.error(
                    "parent",
                    f"loops are nested more than {MAX_NESTING} deep, or contain each other",
                    "Change parentId.",
                    place,
                    name,
                )
        return bad

    def _scope_of(self, name: str) -> str:
        """Return the loop that contains a node; “” if none does."""
        return self._written[name].parent_id or ""

    def _depth(self, name: str) -> int:
        depth = 0
        while (parent := self._written[name].parent_id) and depth <= MAX_NESTING and parent in self._written:
            name, depth = parent, depth + 1
        return depth

    def _settings(self, name: str) -> NodeData | None:
        try:
            return self._types[name].settings.model_validate(self._written[name].data)
        except ValidationError as error:
            self._diagnostics.add_malformed(error, (*self._places[name], "data"), name)
            return None

    def _node(self, name: str) -> GraphNode | None:
        kind, settings = self._types[name], self._settings(name)
        if settings is None or kind.name in INTERFACE_TYPES:
            return None
        inputs, outputs = ports_of(kind, settings)
        body = None
        if isinstance(settings, ComponentSettings):
            found = self._component(settings, (*self._places[name], "data"), name)
            if found is None:
                return None
            body, interface_inputs, interface_outputs = found
            inputs, outputs = (inputs or interface_inputs), (outputs or interface_outputs)
        self._budget.spend("ports", len(inputs) + len(outputs))
        node = GraphNode(
            id=name,
            type=kind.name,
            label=settings.label or name,
            settings=settings,
            inputs=inputs,
            outputs=outputs,
            line=self._diagnostics.source.line_of(self._places[name]),
            body=body,
        )
        checks.check_node(node, kind, self._diagnostics, (*self._places[name], "data"))
        return node

    def _wiring(self) -> Wiring:
        places = {}
        for name in self._written:
            places[name] = NodePlace(self._types[name].name, self._scope_of(name), self._docks(name))
        wiring = Wiring(places, {}, self._budget)
        for index, edge in enumerate(self._body.edges):
            place = (*self._place, "edges", index)
            missing = [end for end in (edge.source, edge.target) if end not in self._written]
            if missing:
                self._partial |= {edge.source, edge.target} | {self._scope_of(end) for end in self._ends(edge)}
                unknown = [end for end in missing if end not in self._dropped]
                if not unknown or (missing == ["", ""] and self._diagnostics.failed()):
                    continue
                self._diagnostics.error(
                    "edge", f"the edge refers to “{unknown[0]}”, which is not a step", "Use the id of a step.", place
                )
                continue
            try:
                wiring.add(edge, edge.id or f"edge-{index}")
            except InvalidEdge as error:
                self._diagnostics.error("edge", str(error), error.fix, place, edge.target)
                self._partial |= {edge.source, edge.target} | {self._scope_of(end) for end in self._ends(edge)}
        return wiring

    def _ends(self, edge: Edge) -> list[str]:
        """Return the existing nodes at the ends of an edge."""
        return [end for end in (edge.source, edge.target) if end in self._written]

    def _docks(self, name: str) -> dict[str, str]:
        slots = self._written[name].data.get("dockSlots")
        if not isinstance(slots, list):
            return {}
        return {str(slot.get("name")): str(slot.get("type")) for slot in slots if isinstance(slot, dict)}

    def _add_templates(self) -> None:
        """Add a wire for each template that refers to another node, so that it waits for that node."""
        names = NodeNames(self._written)
        templates = {name: list(self._template_uses(name, names)) for name in self._nodes}
        refused = unsatisfiable_templates(
            filter(self._makes_node_wait, chain.from_iterable(templates.values())),
            self._wires,
            lambda steps: self._budget.spend("steps", steps),
        )
        places = {name: NodePlace(node.type, self._scope_of(name), {}) for name, node in self._nodes.items()}
        wiring = Wiring(places, self._wires, self._budget)
        wired = {(wire.target.node, wire.target.port) for wires in self._wires.values() for wire in wires}
        for name, found in templates.items():
            inputs = checks.template_inputs_of(self._nodes[name])
            references: dict[tuple[str, str], str] = {}
            for use in found:
                target = use.target
                if use.name == INPUTS_NAME:
                    if use.port not in inputs and (name, use.port) not in wired:
                        self._warn_unknown_input(use)
                elif target is None or (target.scope, (target.node, target.waiting)) in refused:
                    self._warn_unfilled(use)
                elif (use.name, use.port) not in references:
                    references[use.name, use.port] = hidden = f"{HIDDEN_PORT}{use.name}.{use.port}"
                    end = self._scope_of(name), TargetRef("node", hidden, name)
                    wiring.connect(self._ref(target.node, use.port), end, f"{use.name}.{use.port}")
            self._nodes[name] = replace(self._nodes[name], references=references)

    def _template_uses(self, name: str, names: NodeNames) -> Iterator[TemplateUse]:
        for key, text in self._types[name].texts(self._nodes[name].settings):
            place, first = (*self._places[name], "data", *key), int("\n" in text)
            for name_used, port, line in find_references(text):
                target = None
                if name_used != INPUTS_NAME:
                    target = names.resolve(name, name_used)
                yield TemplateUse(name, name_used, port, place, first + line, target)

    def _makes_node_wait(self, use: TemplateUse) -> bool:
        return use.target is not None and not self._is_interface(use.target.node)

    def _warn_unknown_input(self, use: TemplateUse) -> None:
        message = f"the template refers to the input “{use.port}”, which the step does not have"
        fix = "Add the input to “inputs”."
        self._diagnostics.warning("template", message, fix, use.place, use.node, below=use.below)

    def _warn_unfilled(self, use: TemplateUse) -> None:
        message = f"{{{{ {use.name}.{use.port} }}}} refers to no step that has finished by then, so it is not replaced"
        fix = "Refer to an earlier step, or add an edge from the step."
        self._diagnostics.warning("template", message, fix, use.place, use.node, below=use.below)

    def _is_interface(self, name: str) -> bool:
        """Return whether a node represents the border of its scope."""
        return self._types[name].name in INTERFACE_TYPES

    def _ref(self, node: str, port: str) -> tuple[str, SourceRef]:
        if self._is_interface(node):
            return self._scope_of(node), SourceRef("input", port)
        return self._scope_of(node), SourceRef("node", port, node)

    def _set_resets(self) -> None:
        after = {scope: followers_by_node(wires) for scope, wires in self._wires.items()}
        for name, node in list(self._nodes.items()):
            if not isinstance(node.settings, GateSettings):
                continue
            target, scope = node.settings.retry_target, self._scope_of(name)
            reset = self._after(target, after.get(scope, {}))
            if name not in reset and scope not in self._partial:
                if target:
                    message = f"retryTarget “{target}” does not lead to this gate"
                else:
                    message = "the gate has no retryTarget"
                fix = "Name an earlier step in the same loop or component."
                self._diagnostics.error("gate", message, fix, (*self._places[name], "data"), name)
            # Nodes after the gate have not begun while it is not passed, so a retry does not reset them.
            self._nodes[name] = replace(node, reset=(reset | {target}) - self._after(name, after.get(scope, {})))

    def _after(self, name: str, after: dict[str, list[str]]) -> frozenset[str]:
        return descendants_of(name, after, lambda steps: self._budget.spend("steps", steps))

    def _scope(self, owner: str, kind: checks.ScopeKind) -> Scope:
        names = self._nodes_in.get(owner, [])
        nodes = {}
        for name in names:
            node = self._nodes[name]
            if node.type == "loop":
                node = replace(node, body=self._scope(name, "loop"))
            nodes[name] = node
        self._diagnostics.only_errors = owner in self._partial
        wires = list(self._wires.get(owner, ()))
        negated = False
        if owner:
            outputs = [port.name for port in self._nodes[owner].outputs if port.name not in IMPLIED_PORTS]
            wires = add_legacy_feedback(wires, outputs)
            negated = self._check_loop(owner, names, wires)
        incoming: dict[str, list[Wire]] = {name: [] for name in names}
        for wire in wires:
            if wire.target.node:
                incoming[wire.target.node].append(wire)
        waits_for = {name: _sources_of(incoming[name]) for name in names}
        order = self._order(names, waits_for)
        scope = Scope(
            kind=kind,
            nodes=nodes,
            wires=tuple(wires),
            order=order,
            waits_for=waits_for,
            incoming={name: tuple(found) for name, found in incoming.items()},
            gates=tuple(name for name in names if nodes[name].type == "gate"),
            negated=negated,
            count=len(names) + sum(node.body.count for node in nodes.values() if node.body),
        )
        checks.check_scope(scope, self._diagnostics, self._places)
        return scope

    def _order(self, names: list[str], waits_for: Mapping[str, frozenset[str]]) -> tuple[str, ...]:
        """Return the names with each after those it waits for; as they are, with a problem, if there is a cycle."""
        try:
            return topological_order(names, waits_for)
        except CycleError as cycle:
            shown = cycle.nodes
            if len(shown) > MAX_CYCLE_SHOWN:
                shown = (*shown[: MAX_CYCLE_SHOWN - 1], "…", shown[-1])
            fix = "Remove one of these edges, or use a loop with a feedback slot to pass values back."
            self._diagnostics.error(
                "cycle", f"{' → '.join(shown)} wait for each other", fix, self._places[cycle.nodes[0]]
            )
            return tuple(names)

    def _check_loop(self, owner: str, names: list[str], wires: list[Wire]) -> bool:
        settings = self._nodes[owner].settings_of(LoopSettings)
        place = (*self._places[owner], "data")
        slot = next((option for option in settings.dock_slots if option.type == "continue"), None)
        into = [wire for wire in wires if wire.target.kind == "continue"]
        if owner in self._partial:
            pass  # the missing part may be the one that was left out
        elif not names:
            self._diagnostics.error(
                "loop", "the loop is empty", f"Put steps into it with parentId: {owner}.", place, owner
            )
        elif slot is None and not into:
            fix = "Add {name: continue, type: continue} to dockSlots."
            self._diagnostics.error("loop", f"Loop “{owner}” must have a “continue” dock slot", fix, place, owner)
        elif not into:
            slot_name = slot.name if slot else "continue"
            fix = f"Connect a boolean output of a step in the loop to dock:{slot_name}:input."
            message = "the continue dock slot must have an incoming edge from an inner step"
            self._diagnostics.error("loop", message, fix, place, owner)
        negated = slot is not None and slot.negate
        checks.check_continue(owner, into, self._diagnostics, place, negated=negated)
        return negated


def _sources_of(wires: Iterable[Wire]) -> frozenset[str]:
    """Return the nodes at which these wires begin."""
    return frozenset(wire.source.node for wire in wires if wire.source.kind == "node")

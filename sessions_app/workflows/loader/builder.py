"""One body of a file, its nodes and edges, as a checked scope."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from pydantic import ValidationError

from sessions_app.workflows.language.diagnostics import MALFORMED_NODE_TYPE, DiagnosticCollector
from sessions_app.workflows.language.diagnostics import PathInFile as FilePlace
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
from sessions_app.workflows.nodes import NodeType, node_types
from sessions_app.workflows.nodes.gate import GateSettings
from sessions_app.workflows.nodes.scopes import ComponentSettings, LoopSettings

EDGE_TYPES: Final = frozenset({"interface-input", "interface-output", "interface-continue"})
MAX_NESTING: Final = 16
"""Loops within loops."""
MAX_TYPE_NAME: Final = 40
"""Characters of an unknown type that are compared with the known ones."""
MAX_CYCLE_SHOWN: Final = 12
"""Nodes of a ring that an error names."""

FindComponent = Callable[[ComponentSettings, FilePlace, str], "tuple[Scope, tuple[Port, ...], tuple[Port, ...]] | None"]
"""A component's scope, inputs and outputs; None after a finding."""


class ScopeBuilder:
    """Builds the scopes of one body; whatever is wrong goes to the findings."""

    def __init__(
        self, body: Body, place: FilePlace, findings: DiagnosticCollector, component: FindComponent, budget: Budget
    ):
        self._body = body
        self._place = place
        self._findings = findings
        self._component = component
        self._budget = budget
        self._written: dict[str, WrittenNode] = {}
        self._at: dict[str, FilePlace] = {}
        self._types: dict[str, NodeType] = {}
        self._nodes: dict[str, GraphNode] = {}
        self._within: dict[str, list[str]] = {}
        self._wires: WiresByScope = {}
        self._dropped: set[str] = set()
        """Nodes that cannot be checked further; what names them is not complained of."""
        self._partial: set[str] = set()
        """Scopes in which something is missing because of an error, and loops that it may lie in."""

    def build(self, kind: checks.ScopeKind) -> Scope | None:
        """The outermost scope of the body; None if something is wrong with it. Raises OverBudget.

        Each check goes on with what is left after the one before, so that all that is wrong is found at once.
        """
        before = self._findings.errors
        self._read_nodes()
        self._drop(self._check_parents())
        self._wires = self._wiring().wires
        self._nodes = {name: node for name in self._written if (node := self._node(name)) is not None}
        self._drop({name for name, one in self._types.items() if one.name not in EDGE_TYPES} - self._nodes.keys())
        self._cut_wires()
        for name in self._nodes:
            self._within.setdefault(self._scope_of(name), []).append(name)
        self._findings.only_errors = bool(self._partial)
        self._add_templates()
        self._set_resets()
        scope = self._scope("", kind)
        self._findings.only_errors = False
        return None if self._dropped or self._findings.errors > before else scope

    def _drop(self, names: set[str]) -> None:
        """Leave nodes out with all that lies in them."""
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
                self._findings.error("duplicate_id", f"there are two nodes “{node.id}”", "Rename one.", place, node.id)
                continue
            word = str(node.data.get("nodeType") or node.type or "")
            kind = node_types().get(word)
            if kind is None:
                if word != MALFORMED_NODE_TYPE or not self._findings.failed():
                    self._unknown_type(word, place, node.id)
                self._dropped.add(node.id)
                self._partial.add(node.parent_id or "")
                continue
            self._written[node.id], self._at[node.id], self._types[node.id] = node, place, kind

    def _unknown_type(self, word: str, place: FilePlace, node: str) -> None:
        near = difflib.get_close_matches(word[:MAX_TYPE_NAME], node_types(), 1)
        fix = f"Did you mean “{near[0]}”?" if near else f"Use one of {', '.join(sorted(node_types()))}."
        self._findings.error("node_type", f"“{word}” is no node type" if word else "it has no type", fix, place, node)

    def _check_parents(self) -> set[str]:
        """The nodes that lie nowhere; those in a node that was left out are left out with it."""
        bad: set[str] = set()
        for name, node in self._written.items():
            place = (*self._at[name], "parentId")
            parent = node.parent_id
            if not parent or parent in self._dropped:
                continue
            if parent not in self._types or self._types[parent].name != "loop":
                bad.add(name)
                self._findings.error(
                    "parent", f"its parentId “{parent}” is no loop", "Name a loop, or leave it out.", place, name
                )
            elif self._depth(name) > MAX_NESTING:
                bad.add(name)
                self._findings.error(
                    "parent", "loops lie within each other too deep, or in a ring", "Take it out.", place, name
                )
        return bad

    def _scope_of(self, name: str) -> str:
        """The loop that a node lies in; “” for none."""
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
            self._findings.add_malformed(error, (*self._at[name], "data"), name)
            return None

    def _node(self, name: str) -> GraphNode | None:
        kind, settings = self._types[name], self._settings(name)
        if settings is None or kind.name in EDGE_TYPES:
            return None
        inputs, outputs = _ports_of(kind, settings)
        body = None
        if isinstance(settings, ComponentSettings):
            found = self._component(settings, (*self._at[name], "data"), name)
            if found is None:
                return None
            body, offered, given = found
            inputs, outputs = (inputs or offered), (outputs or given)
        self._budget.spend("ports", len(inputs) + len(outputs))
        node = GraphNode(
            id=name,
            type=kind.name,
            label=settings.label or name,
            settings=settings,
            inputs=inputs,
            outputs=outputs,
            line=self._findings.source.line_of(self._at[name]),
            body=body,
        )
        checks.check_node(node, kind, self._findings, (*self._at[name], "data"))
        return node

    def _wiring(self) -> Wiring:
        places = {
            name: NodePlace(self._types[name].name, self._scope_of(name), self._docks(name)) for name in self._written
        }
        wiring = Wiring(places, {}, self._budget)
        for index, edge in enumerate(self._body.edges):
            place = (*self._place, "edges", index)
            missing = [end for end in (edge.source, edge.target) if end not in self._written]
            if missing:
                self._partial |= {edge.source, edge.target} | {self._scope_of(one) for one in self._ends(edge)}
                unknown = [end for end in missing if end not in self._dropped]
                if not unknown or (missing == ["", ""] and self._findings.failed()):
                    continue
                self._findings.error("edge", f"the edge names “{unknown[0]}”, which is no node", "Correct it.", place)
                continue
            try:
                wiring.add(edge, edge.id or f"edge-{index}")
            except InvalidEdge as error:
                self._findings.error("edge", str(error), error.fix, place, edge.target)
                self._partial |= {edge.source, edge.target} | {self._scope_of(one) for one in self._ends(edge)}
        return wiring

    def _ends(self, edge: Edge) -> list[str]:
        """The nodes at the ends of an edge that are there."""
        return [end for end in (edge.source, edge.target) if end in self._written]

    def _docks(self, name: str) -> dict[str, str]:
        slots = self._written[name].data.get("dockSlots")
        found = slots if isinstance(slots, list) else []
        return {str(slot.get("name")): str(slot.get("type")) for slot in found if isinstance(slot, dict)}

    def _add_templates(self) -> None:
        """A template that names another node waits for it, as an edge would."""
        names = NodeNames(self._written)
        templates = {name: list(self._templates(name, names)) for name in self._nodes}
        refused = unsatisfiable_templates(
            (one for found in templates.values() for one in found if one.meant and not self._is_edge(one.meant.node)),
            self._wires,
            lambda steps: self._budget.spend("steps", steps),
        )
        places = {name: NodePlace(node.type, self._scope_of(name), {}) for name, node in self._nodes.items()}
        wiring = Wiring(places, self._wires, self._budget)
        wired = {(wire.target.node, wire.target.port) for wires in self._wires.values() for wire in wires}
        for name, found in templates.items():
            inputs = checks.template_inputs_of(self._nodes[name])
            references: dict[tuple[str, str], str] = {}
            for one in found:
                meant = one.meant
                if one.asked == INPUTS_NAME:
                    if one.port not in inputs and (name, one.port) not in wired:
                        self._no_input(one)
                elif meant is None or (meant.scope, (meant.node, meant.beside)) in refused:
                    self._not_filled(one)
                elif (one.asked, one.port) not in references:
                    references[one.asked, one.port] = hidden = f"{HIDDEN_PORT}{one.asked}.{one.port}"
                    end = self._scope_of(name), TargetRef("node", hidden, name)
                    wiring.connect(self._ref(meant.node, one.port), end, f"{one.asked}.{one.port}")
            self._nodes[name] = _replace_node(self._nodes[name], references=references)

    def _templates(self, name: str, names: NodeNames) -> Iterator[TemplateUse]:
        for key, text in self._types[name].texts(self._nodes[name].settings):
            place, first = (*self._at[name], "data", *key), int("\n" in text)
            for asked, port, line in find_references(text):
                meant = names.meant(name, asked) if asked != INPUTS_NAME else None
                yield TemplateUse(name, asked, port, place, first + line, meant)

    def _no_input(self, one: TemplateUse) -> None:
        message = f"the template names the input “{one.port}”, which the node has not"
        self._findings.warning("template", message, "Add it to inputs.", one.place, one.node, below=one.below)

    def _not_filled(self, one: TemplateUse) -> None:
        message = f"{{{{ {one.asked}.{one.port} }}}} names no node that has ended by then, so it stays as it is written"
        fix = "Name a node before it, or add an edge."
        self._findings.warning("template", message, fix, one.place, one.node, below=one.below)

    def _is_edge(self, name: str) -> bool:
        """Whether a node stands for the edge of its scope."""
        return self._types[name].name in EDGE_TYPES

    def _ref(self, meant: str, port: str) -> tuple[str, SourceRef]:
        return self._scope_of(meant), SourceRef("input", port) if self._is_edge(meant) else SourceRef(
            "node", port, meant
        )

    def _set_resets(self) -> None:
        after = {scope: followers_by_node(wires) for scope, wires in self._wires.items()}
        for name, node in list(self._nodes.items()):
            if not isinstance(node.settings, GateSettings):
                continue
            target, scope = node.settings.retry_target, self._scope_of(name)
            sent_back = self._after(target, after.get(scope, {}))
            if name not in sent_back and scope not in self._partial:
                message = f"retryTarget “{target}” does not lead to this gate" if target else "it has no retryTarget"
                fix = "Name a node before it, in the same loop or component."
                self._findings.error("gate", message, fix, (*self._at[name], "data"), name)
            # What comes after the gate has not begun while it is not passed.
            self._nodes[name] = _replace_node(
                node, reset=(sent_back | {target}) - self._after(name, after.get(scope, {}))
            )

    def _after(self, name: str, after: dict[str, list[str]]) -> frozenset[str]:
        return descendants_of(name, after, lambda steps: self._budget.spend("steps", steps))

    def _scope(self, owner: str, kind: checks.ScopeKind) -> Scope:
        names = self._within.get(owner, [])
        nodes = {name: self._with_body(self._nodes[name]) for name in names}
        self._findings.only_errors = owner in self._partial
        wires = list(self._wires.get(owner, ()))
        negated = False
        if owner:
            wires = add_legacy_feedback(
                wires, [port.name for port in self._nodes[owner].outputs if not _is_implied_port(port)]
            )
            negated = self._check_loop(owner, names, wires)
        incoming: dict[str, list[Wire]] = {name: [] for name in names}
        for wire in wires:
            if wire.target.node:
                incoming[wire.target.node].append(wire)
        waits_for = {name: _sources_by_target(found) for name, found in incoming.items()}
        try:
            order = topological_order(names, waits_for)
        except CycleError as cycle:
            order = tuple(names)
            shown = (
                cycle.nodes
                if len(cycle.nodes) <= MAX_CYCLE_SHOWN
                else (*cycle.nodes[: MAX_CYCLE_SHOWN - 1], "…", cycle.nodes[-1])
            )
            fix = "Remove one of these edges, or use a loop with a feedback slot."
            self._findings.error("cycle", f"{' → '.join(shown)} wait for each other", fix, self._at[cycle.nodes[0]])
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
        checks.check_scope(scope, self._findings, self._at)
        return scope

    def _with_body(self, node: GraphNode) -> GraphNode:
        return _replace_node(node, body=self._scope(node.id, "loop")) if node.type == "loop" else node

    def _check_loop(self, owner: str, names: list[str], wires: list[Wire]) -> bool:
        settings, place = self._nodes[owner].settings, (*self._at[owner], "data")
        assert isinstance(settings, LoopSettings)  # noqa: S101  (its type's)
        slot = next((one for one in settings.dock_slots if one.type == "continue"), None)
        into = [wire for wire in wires if wire.target.kind == "continue"]
        if owner in self._partial:
            pass  # what is wanted may be what was left out
        elif not names:
            self._findings.error("loop", "there is nothing in the loop", f"Give nodes parentId: {owner}.", place, owner)
        elif slot is None and not into:
            fix = "Add {name: continue, type: continue} to dockSlots."
            self._findings.error("loop", f"Loop “{owner}” must have a “continue” dock slot", fix, place, owner)
        elif not into:
            fix = f"Wire a boolean of a node in it to dock:{slot.name if slot else 'continue'}:input."
            message = "the continue dock slot must have an incoming edge from an inner node"
            self._findings.error("loop", message, fix, place, owner)
        negated = slot is not None and slot.negate
        checks.check_continue(owner, into, self._findings, place, negated=negated)
        return negated


def _ports_of(kind: NodeType, settings: NodeData) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
    """Those that are written, or the type's where none is; and outputs that follow from the settings."""
    none = settings.inputs is None and settings.outputs is None
    inputs = kind.inputs if none else tuple(settings.inputs or ())
    outputs = kind.outputs if none else tuple(settings.outputs or ())
    known = {one.name for one in outputs}
    more = (one for one in kind.implied(settings) if one.name not in known)
    return inputs, (*outputs, *more)


def _sources_by_target(incoming: Iterable[Wire]) -> frozenset[str]:
    return frozenset(wire.source.node for wire in incoming if wire.source.kind == "node")


def _is_implied_port(port: Port) -> bool:
    return port.name in {"iterations", "terminationReason"}


def _replace_node(node: GraphNode, **changes: object) -> GraphNode:
    values = {name: getattr(node, name) for name in GraphNode.__slots__} | changes
    return GraphNode(**values)

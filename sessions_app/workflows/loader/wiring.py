"""Resolve the edges of a file to wires within scopes, and the node names in templates to nodes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from sessions_app.workflows.language.diagnostics import PathInFile
from sessions_app.workflows.language.graph import (
    HIDDEN_PORT,
    SourceRef,
    SpendBudget,
    TargetRef,
    WaitPair,
    Wire,
    followers_by_node,
    pairs_closing_cycles,
)
from sessions_app.workflows.language.limits import Budget
from sessions_app.workflows.language.schema import Edge
from sessions_app.workflows.language.schema import Node as WrittenNode

_PORT: Final = re.compile(r"(?P<side>input|output):(?P<name>.+?)(?P<internal>:internal)?\Z", re.DOTALL)
_DOCK: Final = re.compile(r"dock:(?P<slot>.+):(?P<side>output|input|prev|current)\Z", re.DOTALL)
PREVIOUS_PORT: Final = "prev."
ITERATION_PORT: Final = "iteration"

_MAX_DOCKS_LISTED: Final = 20
"""Dock slots that an error lists."""

ScopeName = str
"""The id of the loop whose inside it is; “” for the outermost."""
WiresByScope = dict[ScopeName, dict[Wire, None]]
"""The wires of each scope, in their order and none twice."""


class InvalidEdge(ValueError):
    """The edge leads nowhere; the message and the fix are for people."""

    def __init__(self, message: str, fix: str):
        super().__init__(message)
        self.fix = fix


@dataclass(frozen=True, slots=True)
class NodePlace:
    """What the wiring knows of a node: its type, the scope it is in, and of a loop the kinds of its docks."""

    type: str
    scope: ScopeName
    docks: Mapping[str, str]


@dataclass(slots=True)
class Wiring:
    """Makes wires. Its methods raise OverBudget once there are too many."""

    places: Mapping[str, NodePlace]
    wires: WiresByScope
    budget: Budget

    def add(self, edge: Edge, name: str) -> None:
        """Carry out one edge. Raises BadEdge."""
        source_scope, ref = self.source(edge)
        target_scope, slot = self.target(edge)
        if target_scope != source_scope and edge.source in self._within(target_scope) and ref.kind == "node":
            raise InvalidEdge(
                f"“{edge.source}” gives its outputs when it has ended, so nothing within it can take them",
                "Use dock:<slot>:output, dock:<slot>:prev or input:<port>:internal as the sourceHandle.",
            )
        if target_scope != source_scope and edge.target in self._within(source_scope) and slot.kind == "node":
            raise InvalidEdge(
                f"“{edge.target}” takes its inputs before it begins, so nothing within it can give them",
                "Use dock:<slot>:input, dock:<slot>:current or output:<port>:internal as the targetHandle.",
            )
        self.connect((source_scope, ref), (target_scope, slot), name)

    def connect(self, begin: tuple[ScopeName, SourceRef], end: tuple[ScopeName, TargetRef], name: str) -> None:
        """Lead a value from a scope to another, over the edges of those between them."""
        (source_scope, ref), (target_scope, slot) = begin, end
        around_target = self._within(target_scope)
        while source_scope not in around_target:
            hidden = f"{HIDDEN_PORT}{name}"
            self._wire(source_scope, Wire(ref, TargetRef("output", hidden), name))
            ref, source_scope = SourceRef("node", hidden, source_scope), self.places[source_scope].scope
        for inner in reversed(around_target[: around_target.index(source_scope)]):
            hidden = f"{HIDDEN_PORT}{name}"
            self._wire(source_scope, Wire(ref, TargetRef("node", hidden, inner), name))
            ref, source_scope = SourceRef("input", hidden), inner
        self._wire(target_scope, Wire(ref, slot, name))

    def _wire(self, scope: ScopeName, wire: Wire) -> None:
        known = self.wires.setdefault(scope, {})
        if wire not in known:
            self.budget.spend("wires")
            known[wire] = None

    def _within(self, scope: ScopeName) -> list[ScopeName]:
        """A scope and those around it, from the inside out; the last is “”."""
        found = [scope]
        while scope:
            scope = self.places[scope].scope
            found.append(scope)
        return found

    def source(self, edge: Edge) -> tuple[ScopeName, SourceRef]:
        """Where an edge begins."""
        place, handle = self.places[edge.source], edge.source_handle or "output:output"
        if place.type == "interface-input":
            return place.scope, _interface_ref(_port(handle, "output"), is_loop=bool(place.scope))
        if dock := _DOCK.match(handle):
            return edge.source, self._dock_ref(edge.source, dock["slot"], dock["side"])
        if found := _PORT.match(handle):
            if found["side"] == "input" and found["internal"] and place.type == "loop":
                return edge.source, SourceRef("input", found["name"])
            if found["side"] == "output" and not found["internal"]:
                return place.scope, SourceRef("node", found["name"], edge.source)
        raise InvalidEdge(f"nothing comes out of the sourceHandle “{handle}”", "Write output:<port>.")

    def target(self, edge: Edge) -> tuple[ScopeName, TargetRef]:
        """Where an edge ends."""
        place, handle = self.places[edge.target], edge.target_handle or "input:input"
        if place.type == "interface-output":
            return place.scope, TargetRef("output", _port(handle, "input"))
        if place.type == "interface-continue":
            return place.scope, TargetRef("continue", "")
        if dock := _DOCK.match(handle):
            return edge.target, self._dock_slot(edge.target, dock["slot"], dock["side"])
        if found := _PORT.match(handle):
            if found["side"] == "output" and found["internal"] and place.type == "loop":
                return edge.target, TargetRef("output", found["name"])
            if found["side"] == "input" and not found["internal"]:
                return place.scope, TargetRef("node", found["name"], edge.target)
        raise InvalidEdge(f"nothing goes into the targetHandle “{handle}”", "Write input:<port>.")

    def _dock_ref(self, loop: str, slot: str, side: str) -> SourceRef:
        kind = self._dock(loop, slot)
        if kind == "iteration" and side == "output":
            return SourceRef("iteration", slot)
        if kind == "feedback" and side == "prev":
            return SourceRef("prev", slot)
        raise InvalidEdge(f"nothing comes out of dock:{slot}:{side}, for “{slot}” is a {kind} slot", _DOCK_FIX)

    def _dock_slot(self, loop: str, slot: str, side: str) -> TargetRef:
        kind = self._dock(loop, slot)
        if kind == "continue" and side == "input":
            return TargetRef("continue", slot)
        if kind == "feedback" and side == "current":
            return TargetRef("current", slot)
        raise InvalidEdge(f"nothing goes into dock:{slot}:{side}, for “{slot}” is a {kind} slot", _DOCK_FIX)

    def _dock(self, loop: str, slot: str) -> str:
        kind = self.places[loop].docks.get(slot)
        if self.places[loop].type != "loop" or kind is None:
            known = ", ".join(islice(self.places[loop].docks, _MAX_DOCKS_LISTED)) or "none"
            raise InvalidEdge(f"“{loop}” has no dock slot “{slot}” (it has {known})", "Add it to dockSlots.")
        return kind


_DOCK_FIX: Final = (
    "An iteration slot gives :output, a feedback slot gives :prev and takes :current, a continue slot takes :input."
)


def _port(handle: str, side: str) -> str:
    found = _PORT.match(handle)
    if found is None or found["side"] != side or found["internal"]:
        raise InvalidEdge(f"“{handle}” is no {side} of an interface", f"Write {side}:<port>.")
    return found["name"]


def _interface_ref(port: str, *, is_loop: bool) -> SourceRef:
    """What an interface gives within; in a loop of the older style also the iteration and what was before."""
    if is_loop and port == ITERATION_PORT:
        return SourceRef("iteration", port)
    if is_loop and port.startswith(PREVIOUS_PORT):
        return SourceRef("prev", port.removeprefix(PREVIOUS_PORT))
    return SourceRef("input", port)


def add_legacy_feedback(wires: list[Wire], outputs: list[str]) -> list[Wire]:
    """The wires of a loop of the older style: what goes to its output is also what the next iteration is told.

    The only output that such a loop declares is the only one that goes out, whatever the two are called.
    """
    told = {wire.source.port for wire in wires if wire.source.kind == "prev"}
    given = [wire for wire in wires if wire.target.kind == "output"]
    more = [replace(wire, target=TargetRef("current", wire.target.port)) for wire in given if wire.target.port in told]
    if len(given) == 1 == len(outputs) and given[0].target.port != outputs[0]:
        more.append(replace(given[0], target=TargetRef("output", outputs[0])))
    return wires + more


@dataclass(frozen=True, slots=True)
class TemplateTarget:
    """A node that a template names, and the one beside it that has the template or lies around it."""

    node: str
    beside: str
    scope: ScopeName


@dataclass(frozen=True, slots=True)
class TemplateUse:
    """One ``{{ asked.port }}`` in a text of a node; ``below`` counts lines from its place."""

    node: str
    asked: str
    port: str
    place: PathInFile
    below: int
    meant: TemplateTarget | None


class NodeNames:
    """The nodes of one body by what templates can call them: an id, else a label, as it is or like_this."""

    def __init__(self, written: Mapping[str, WrittenNode]):
        self._written = written
        self._labels: dict[tuple[ScopeName, str], list[str]] = {}
        self._words: dict[tuple[ScopeName, str], list[str]] = {}
        for name, node in written.items():
            scope, label = node.parent_id or "", str(node.data.get("label", ""))
            self._labels.setdefault((scope, label), []).append(name)
            self._words.setdefault((scope, label.lower().replace(" ", "_")), []).append(name)

    def meant(self, name: str, asked: str) -> TemplateTarget | None:
        """The node that ``asked`` means in a template of the node ``name``: the nearest one beside or around it."""
        for beside, scope in self._around(name):
            if found := self._called(asked, scope, beside):
                return TemplateTarget(found, beside, scope)
        return None

    def _around(self, name: str) -> Iterator[tuple[str, ScopeName]]:
        while name:
            scope = self._written[name].parent_id or ""
            yield name, scope
            name = scope

    def _called(self, asked: str, scope: ScopeName, beside: str) -> str:
        node = self._written.get(asked)
        if node is not None and asked != beside and (node.parent_id or "") == scope:
            return asked
        for index in (self._labels, self._words):
            # Of two that are called so, one at least is not the node itself.
            for name in index.get((scope, asked), [])[:2]:
                if name != beside:
                    return name
        return ""


def unsatisfiable_templates(
    templates: Iterable[TemplateUse], wires: WiresByScope, spend: SpendBudget
) -> frozenset[tuple[ScopeName, WaitPair]]:
    """The waits that templates ask for and cannot have, as a node would wait for itself; the first ones win.

    ``wires``: those of the edges. ``spend`` is told each step of a search and may raise to end it.
    """
    wanted: dict[ScopeName, dict[WaitPair, None]] = {}
    for one in templates:
        if one.meant is not None:
            wanted.setdefault(one.meant.scope, {})[one.meant.node, one.meant.beside] = None
    refused: set[tuple[ScopeName, WaitPair]] = set()
    for scope, pairs in wanted.items():
        fixed = [(first, then) for first, after in followers_by_node(wires.get(scope, ())).items() for then in after]
        refused.update((scope, pair) for pair in pairs_closing_cycles(fixed, list(pairs), spend))
    return frozenset(refused)

"""Resolve the edges of a file to wires within scopes, and the names in templates to nodes."""

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
"""The id of the loop that contains the scope; “” for the outermost scope."""
WiresByScope = dict[ScopeName, dict[Wire, None]]
"""The wires of each scope, ordered and without duplicates."""


class InvalidEdge(ValueError):
    """The edge cannot be resolved; users see the message and the fix."""

    def __init__(self, message: str, fix: str):
        super().__init__(message)
        self.fix = fix


@dataclass(frozen=True, slots=True)
class NodePlace:
    """The type and the scope of a node, and for a loop the kinds of its dock slots by name."""

    type: str
    scope: ScopeName
    docks: Mapping[str, str]


@dataclass(slots=True)
class Wiring:
    """Creates wires. Its methods raise BudgetExceeded once there are too many."""

    places: Mapping[str, NodePlace]
    wires: WiresByScope
    budget: Budget

    def add(self, edge: Edge, name: str) -> None:
        """Add the wires of one edge. Raises InvalidEdge."""
        source_scope, ref = self.source(edge)
        target_scope, slot = self.target(edge)
        if target_scope != source_scope and edge.source in self._within(target_scope) and ref.kind == "node":
            raise InvalidEdge(
                f"“{edge.source}” has its outputs only once it has finished, so a step inside it cannot use them",
                "Use dock:<slot>:output, dock:<slot>:prev or input:<port>:internal as the sourceHandle.",
            )
        if target_scope != source_scope and edge.target in self._within(source_scope) and slot.kind == "node":
            raise InvalidEdge(
                f"“{edge.target}” needs its inputs before it begins, so a step inside it cannot provide them",
                "Use dock:<slot>:input, dock:<slot>:current or output:<port>:internal as the targetHandle.",
            )
        self.connect((source_scope, ref), (target_scope, slot), name)

    def connect(self, begin: tuple[ScopeName, SourceRef], end: tuple[ScopeName, TargetRef], name: str) -> None:
        """Carry a value from one scope to another, with hidden ports at every border in between."""
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
        """Return a scope and the scopes around it, from the inside out; the last is “”."""
        found = [scope]
        while scope:
            scope = self.places[scope].scope
            found.append(scope)
        return found

    def source(self, edge: Edge) -> tuple[ScopeName, SourceRef]:
        """Return the scope and the source of an edge. Raises InvalidEdge."""
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
        raise InvalidEdge(f"the sourceHandle “{handle}” is not an output", "Write output:<port>.")

    def target(self, edge: Edge) -> tuple[ScopeName, TargetRef]:
        """Return the scope and the target of an edge. Raises InvalidEdge."""
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
        raise InvalidEdge(f"the targetHandle “{handle}” is not an input", "Write input:<port>.")

    def _dock_ref(self, loop: str, slot: str, side: str) -> SourceRef:
        kind = self._dock(loop, slot)
        if kind == "iteration" and side == "output":
            return SourceRef("iteration", slot)
        if kind == "feedback" and side == "prev":
            return SourceRef("prev", slot)
        raise InvalidEdge(f"dock:{slot}:{side} is not an output, because “{slot}” is a {kind} slot", _DOCK_FIX)

    def _dock_slot(self, loop: str, slot: str, side: str) -> TargetRef:
        kind = self._dock(loop, slot)
        if kind == "continue" and side == "input":
            return TargetRef("continue", slot)
        if kind == "feedback" and side == "current":
            return TargetRef("current", slot)
        raise InvalidEdge(f"dock:{slot}:{side} is not an input, because “{slot}” is a {kind} slot", _DOCK_FIX)

    def _dock(self, loop: str, slot: str) -> str:
        kind = self.places[loop].docks.get(slot)
        if self.places[loop].type != "loop" or kind is None:
            known = ", ".join(islice(self.places[loop].docks, _MAX_DOCKS_LISTED)) or "none"
            raise InvalidEdge(f"“{loop}” has no dock slot “{slot}” (it has {known})", "Add it to dockSlots.")
        return kind


_DOCK_FIX: Final = (
    "An iteration slot has :output, a feedback slot has :prev (output) and :current (input), "
    "and a continue slot has :input."
)


def _port(handle: str, side: str) -> str:
    found = _PORT.match(handle)
    if found is None or found["side"] != side or found["internal"]:
        raise InvalidEdge(f"“{handle}” is not an {side} of an interface", f"Write {side}:<port>.")
    return found["name"]


def _interface_ref(port: str, *, is_loop: bool) -> SourceRef:
    """Return the source inside a scope for a port of its interface.

    A loop of the older style has the iteration number and the previous values there, too.
    """
    if is_loop and port == ITERATION_PORT:
        return SourceRef("iteration", port)
    if is_loop and port.startswith(PREVIOUS_PORT):
        return SourceRef("prev", port.removeprefix(PREVIOUS_PORT))
    return SourceRef("input", port)


def add_legacy_feedback(wires: list[Wire], outputs: list[str]) -> list[Wire]:
    """Return the wires of a loop, completed as the older style requires.

    There, the value at an output is also the feedback for the next iteration. If such a loop declares one output and
    has one, they are the same even if their names differ.
    """
    read_back = {wire.source.port for wire in wires if wire.source.kind == "prev"}
    given = [wire for wire in wires if wire.target.kind == "output"]
    fed_back = [wire for wire in given if wire.target.port in read_back]
    more = [replace(wire, target=TargetRef("current", wire.target.port)) for wire in fed_back]
    if len(given) == 1 == len(outputs) and given[0].target.port != outputs[0]:
        more.append(replace(given[0], target=TargetRef("output", outputs[0])))
    return wires + more


@dataclass(frozen=True, slots=True)
class TemplateTarget:
    """The node that a template refers to, and the node of the same scope that has or contains the template."""

    node: str
    waiting: str
    scope: ScopeName


@dataclass(frozen=True, slots=True)
class TemplateUse:
    """One template ``{{ name.port }}`` in a text of a node, ``below`` lines under ``place``."""

    node: str
    name: str
    port: str
    place: PathInFile
    below: int
    target: TemplateTarget | None


class NodeNames:
    """Finds the nodes of a body by the names that templates use: an id, or else a label, as it is or in snake_case."""

    def __init__(self, written: Mapping[str, WrittenNode]):
        self._written = written
        self._labels: dict[tuple[ScopeName, str], list[str]] = {}
        self._words: dict[tuple[ScopeName, str], list[str]] = {}
        for name, node in written.items():
            scope, label = node.parent_id or "", str(node.data.get("label", ""))
            self._labels.setdefault((scope, label), []).append(name)
            self._words.setdefault((scope, label.lower().replace(" ", "_")), []).append(name)

    def resolve(self, node: str, name: str) -> TemplateTarget | None:
        """Return the node that ``name`` means in a template of ``node``: the nearest one beside or around it."""
        for waiting, scope in self._around(node):
            if found := self._find(name, scope, waiting):
                return TemplateTarget(found, waiting, scope)
        return None

    def _around(self, name: str) -> Iterator[tuple[str, ScopeName]]:
        while name:
            scope = self._written[name].parent_id or ""
            yield name, scope
            name = scope

    def _find(self, name: str, scope: ScopeName, waiting: str) -> str:
        node = self._written.get(name)
        if node is not None and name != waiting and (node.parent_id or "") == scope:
            return name
        for index in (self._labels, self._words):
            # Two candidates are enough, because at most one of them is the waiting node itself.
            for candidate in index.get((scope, name), [])[:2]:
                if candidate != waiting:
                    return candidate
        return ""


def unsatisfiable_templates(
    templates: Iterable[TemplateUse], wires: WiresByScope, spend: SpendBudget
) -> frozenset[tuple[ScopeName, WaitPair]]:
    """Return the waits that templates require but that would make a node wait for itself; earlier templates win.

    ``wires`` are those of the edges. ``spend`` is called with the steps of the search, and may raise to stop it.
    """
    wanted: dict[ScopeName, dict[WaitPair, None]] = {}
    for use in templates:
        if use.target is not None:
            wanted.setdefault(use.target.scope, {})[use.target.node, use.target.waiting] = None
    refused: set[tuple[ScopeName, WaitPair]] = set()
    for scope, pairs in wanted.items():
        fixed = []
        for first, followers in followers_by_node(wires.get(scope, ())).items():
            fixed += [(first, follower) for follower in followers]
        refused.update((scope, pair) for pair in pairs_closing_cycles(fixed, list(pairs), spend))
    return frozenset(refused)

"""The edges of a file as wires within scopes: handles read, docks and interfaces resolved, scopes crossed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from sessions_app.workflows.budget import Budget
from sessions_app.workflows.graph import HIDDEN, Ref, Slot, Wire
from sessions_app.workflows.schema import Edge

_PORT: Final = re.compile(r"(?P<side>input|output):(?P<name>.+?)(?P<internal>:internal)?\Z", re.DOTALL)
_DOCK: Final = re.compile(r"dock:(?P<slot>.+):(?P<side>output|input|prev|current)\Z", re.DOTALL)
PREVIOUS: Final = "prev."
ITERATION: Final = "iteration"

_NAMED: Final = 20
"""Dock slots that an error lists."""

ScopeName = str
"""The id of the loop whose inside it is; “” for the outermost."""
Wires = dict[ScopeName, dict[Wire, None]]
"""The wires of each scope, in their order and none twice."""


class BadEdge(ValueError):
    """The edge leads nowhere; the message and the fix are for people."""

    def __init__(self, message: str, fix: str):
        super().__init__(message)
        self.fix = fix


@dataclass(frozen=True, slots=True)
class Place:
    """What the wiring knows of a node: its type, the scope it is in, and of a loop the kinds of its docks."""

    type: str
    scope: ScopeName
    docks: Mapping[str, str]


@dataclass(slots=True)
class Wiring:
    """Makes wires. Its methods raise OverBudget once there are too many."""

    places: Mapping[str, Place]
    wires: Wires
    budget: Budget

    def add(self, edge: Edge, name: str) -> None:
        """Carry out one edge. Raises BadEdge."""
        source_scope, ref = self.source(edge)
        target_scope, slot = self.target(edge)
        if target_scope != source_scope and edge.source in self._within(target_scope) and ref.kind == "node":
            raise BadEdge(
                f"“{edge.source}” gives its outputs when it has ended, so nothing within it can take them",
                "Use dock:<slot>:output, dock:<slot>:prev or input:<port>:internal as the sourceHandle.",
            )
        if target_scope != source_scope and edge.target in self._within(source_scope) and slot.kind == "node":
            raise BadEdge(
                f"“{edge.target}” takes its inputs before it begins, so nothing within it can give them",
                "Use dock:<slot>:input, dock:<slot>:current or output:<port>:internal as the targetHandle.",
            )
        self.connect((source_scope, ref), (target_scope, slot), name)

    def connect(self, begin: tuple[ScopeName, Ref], end: tuple[ScopeName, Slot], name: str) -> None:
        """Lead a value from a scope to another, over the edges of those between them."""
        (source_scope, ref), (target_scope, slot) = begin, end
        around_target = self._within(target_scope)
        while source_scope not in around_target:
            hidden = f"{HIDDEN}{name}"
            self._wire(source_scope, Wire(ref, Slot("output", hidden), name))
            ref, source_scope = Ref("node", hidden, source_scope), self.places[source_scope].scope
        for inner in reversed(around_target[: around_target.index(source_scope)]):
            hidden = f"{HIDDEN}{name}"
            self._wire(source_scope, Wire(ref, Slot("node", hidden, inner), name))
            ref, source_scope = Ref("input", hidden), inner
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

    def source(self, edge: Edge) -> tuple[ScopeName, Ref]:
        """Where an edge begins."""
        place, handle = self.places[edge.source], edge.source_handle or "output:output"
        if place.type == "interface-input":
            return place.scope, _inner_ref(_port(handle, "output"), is_loop=bool(place.scope))
        if dock := _DOCK.match(handle):
            return edge.source, self._dock_ref(edge.source, dock["slot"], dock["side"])
        if found := _PORT.match(handle):
            if found["side"] == "input" and found["internal"] and place.type == "loop":
                return edge.source, Ref("input", found["name"])
            if found["side"] == "output" and not found["internal"]:
                return place.scope, Ref("node", found["name"], edge.source)
        raise BadEdge(f"nothing comes out of the sourceHandle “{handle}”", "Write output:<port>.")

    def target(self, edge: Edge) -> tuple[ScopeName, Slot]:
        """Where an edge ends."""
        place, handle = self.places[edge.target], edge.target_handle or "input:input"
        if place.type == "interface-output":
            return place.scope, Slot("output", _port(handle, "input"))
        if place.type == "interface-continue":
            return place.scope, Slot("continue", "")
        if dock := _DOCK.match(handle):
            return edge.target, self._dock_slot(edge.target, dock["slot"], dock["side"])
        if found := _PORT.match(handle):
            if found["side"] == "output" and found["internal"] and place.type == "loop":
                return edge.target, Slot("output", found["name"])
            if found["side"] == "input" and not found["internal"]:
                return place.scope, Slot("node", found["name"], edge.target)
        raise BadEdge(f"nothing goes into the targetHandle “{handle}”", "Write input:<port>.")

    def _dock_ref(self, loop: str, slot: str, side: str) -> Ref:
        kind = self._dock(loop, slot)
        if kind == "iteration" and side == "output":
            return Ref("iteration", slot)
        if kind == "feedback" and side == "prev":
            return Ref("prev", slot)
        raise BadEdge(f"nothing comes out of dock:{slot}:{side}, for “{slot}” is a {kind} slot", _DOCK_FIX)

    def _dock_slot(self, loop: str, slot: str, side: str) -> Slot:
        kind = self._dock(loop, slot)
        if kind == "continue" and side == "input":
            return Slot("continue", slot)
        if kind == "feedback" and side == "current":
            return Slot("current", slot)
        raise BadEdge(f"nothing goes into dock:{slot}:{side}, for “{slot}” is a {kind} slot", _DOCK_FIX)

    def _dock(self, loop: str, slot: str) -> str:
        kind = self.places[loop].docks.get(slot)
        if self.places[loop].type != "loop" or kind is None:
            known = ", ".join(islice(self.places[loop].docks, _NAMED)) or "none"
            raise BadEdge(f"“{loop}” has no dock slot “{slot}” (it has {known})", "Add it to dockSlots.")
        return kind


_DOCK_FIX: Final = (
    "An iteration slot gives :output, a feedback slot gives :prev and takes :current, a continue slot takes :input."
)


def _port(handle: str, side: str) -> str:
    found = _PORT.match(handle)
    if found is None or found["side"] != side or found["internal"]:
        raise BadEdge(f"“{handle}” is no {side} of an interface", f"Write {side}:<port>.")
    return found["name"]


def _inner_ref(port: str, *, is_loop: bool) -> Ref:
    """What an interface gives within; in a loop of the older style also the iteration and what was before."""
    if is_loop and port == ITERATION:
        return Ref("iteration", port)
    if is_loop and port.startswith(PREVIOUS):
        return Ref("prev", port.removeprefix(PREVIOUS))
    return Ref("input", port)


def with_older_feedback(wires: list[Wire], outputs: list[str]) -> list[Wire]:
    """The wires of a loop of the older style: what goes to its output is also what the next iteration is told.

    The only output that such a loop declares is the only one that goes out, whatever the two are called.
    """
    told = {wire.source.port for wire in wires if wire.source.kind == "prev"}
    given = [wire for wire in wires if wire.target.kind == "output"]
    more = [replace(wire, target=Slot("current", wire.target.port)) for wire in given if wire.target.port in told]
    if len(given) == 1 == len(outputs) and given[0].target.port != outputs[0]:
        more.append(replace(given[0], target=Slot("output", outputs[0])))
    return wires + more

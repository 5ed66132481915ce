"""The internal form of a workflow, the same whatever version and style it was written in.

A *scope* is a set of nodes that run together: the whole workflow, one iteration of a loop, the inside of a component.
Values reach a node from nodes of its own scope, or from the scope's edge: its inputs, the iteration, what the
iteration before left. What an edge of the file does across scopes is carried over their edges.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from sessions_app.workflows.schema import NodeData, Port

HIDDEN = "@"
"""Begins the names of ports that no file wrote: for values across scopes and in templates."""


@dataclass(frozen=True, slots=True)
class Ref:
    """Where a value comes from, within one scope."""

    kind: Literal["node", "input", "iteration", "prev"]
    port: str
    node: str = ""


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a value goes to, within one scope."""

    kind: Literal["node", "output", "current", "continue"]
    port: str
    node: str = ""


@dataclass(frozen=True, slots=True)
class Wire:
    """A line within one scope. ``edge`` is the edge of the file that it carries out."""

    source: Ref
    target: Slot
    edge: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """A node with all defaults filled in. ``reset`` has, of a gate, what a retry runs again."""

    id: str
    type: str
    label: str
    settings: NodeData
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    line: int = 0
    body: Scope | None = None
    references: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """The templates ``{{ node.port }}`` in its texts, and the hidden port each is filled from."""
    reset: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Scope:
    """Nodes that run together. ``order`` has each after what it waits for."""

    kind: Literal["workflow", "loop", "component"]
    nodes: Mapping[str, Node]
    wires: tuple[Wire, ...]
    order: tuple[str, ...]
    waits_for: Mapping[str, frozenset[str]]
    incoming: Mapping[str, tuple[Wire, ...]]
    gates: tuple[str, ...] = ()
    negated: bool = False
    """Of a loop: it goes on while its *continue* is false."""
    count: int = 0
    """Nodes in it and in everything within, each use counted."""

    @property
    def leaves(self) -> tuple[str, ...]:
        """Nodes that no other waits for, in their order."""
        awaited = frozenset().union(*self.waits_for.values()) if self.waits_for else frozenset()
        return tuple(name for name in self.order if name not in awaited)

    def into(self, kind: str) -> tuple[Wire, ...]:
        """The wires that end at the edge of the scope, of one kind."""
        return tuple(wire for wire in self.wires if wire.target.kind == kind)


@dataclass(frozen=True, slots=True)
class Workflow:
    """A workflow that can be run."""

    name: str
    description: str
    root: Scope
    max_concurrent: int
    inputs: tuple[Port, ...] = ()
    """What a run of it is started with by name: the inputs of its interface, and what its triggers declare."""

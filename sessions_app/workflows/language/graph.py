"""The normalised graph of a workflow, and the order in which its nodes wait for each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from sessions_app.workflows.language.schema import NodeData, Port

HIDDEN_PORT = "@"
"""Begins the names of ports that no file wrote: for values across scopes and in templates."""


@dataclass(frozen=True, slots=True)
class SourceRef:
    """Where a value comes from, within one scope."""

    kind: Literal["node", "input", "iteration", "prev"]
    port: str
    node: str = ""


@dataclass(frozen=True, slots=True)
class TargetRef:
    """Where a value goes to, within one scope."""

    kind: Literal["node", "output", "current", "continue"]
    port: str
    node: str = ""


@dataclass(frozen=True, slots=True)
class Wire:
    """A line within one scope. ``edge`` is the edge of the file that it carries out."""

    source: SourceRef
    target: TargetRef
    edge: str = ""


@dataclass(frozen=True, slots=True)
class GraphNode:
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
    nodes: Mapping[str, GraphNode]
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
class WorkflowGraph:
    """A workflow that can be run."""

    name: str
    description: str
    root: Scope
    max_concurrent: int
    inputs: tuple[Port, ...] = ()
    """What a run of it is started with by name: the inputs of its interface, and what its triggers declare."""


WaitPair = tuple[str, str]
"""(node, a node that waits for it)"""
SpendBudget = Callable[[int], object]
"""Told how many steps a search has taken; it may raise to end it."""


class CycleError(Exception):
    """Nodes wait for each other; ``nodes`` are one ring of them, the first again at the end."""

    def __init__(self, nodes: Sequence[str]):
        super().__init__(" → ".join(nodes))
        self.nodes = tuple(nodes)


def topological_order(names: Sequence[str], waits_for: Mapping[str, frozenset[str]]) -> tuple[str, ...]:
    """Each after what it waits for, else as they came. Raises CycleFound."""
    place = {name: index for index, name in enumerate(names)}
    left = {name: {source for source in waits_for[name] if source in place} for name in names}
    after: dict[str, list[str]] = {name: [] for name in names}
    for name, sources in left.items():
        for source in sources:
            after[source].append(name)
    order = [name for name in names if not left[name]]
    for name in order:
        for follower in sorted(after[name], key=place.__getitem__):
            left[follower].discard(name)
            if not left[follower]:
                order.append(follower)
    if len(order) < len(names):
        done = set(order)
        raise CycleError(_find_cycle({name: sources - done for name, sources in left.items() if name not in done}))
    return tuple(order)


def _find_cycle(left: Mapping[str, Iterable[str]]) -> list[str]:
    path = dict.fromkeys([name := next(iter(left))])
    while (name := min(left[name])) not in path:
        path[name] = None
    ring = list(path)[list(path).index(name) :]
    return [*reversed(ring), ring[-1]]


def followers_by_node(wires: Iterable[Wire]) -> dict[str, list[str]]:
    """The nodes that wait for each node directly, each once."""
    found: dict[str, dict[str, None]] = {}
    for wire in wires:
        if wire.source.kind == "node" and wire.target.kind == "node":
            found.setdefault(wire.source.node, {})[wire.target.node] = None
    return {name: list(after) for name, after in found.items()}


def descendants_of(name: str, after: Mapping[str, Sequence[str]], spend: SpendBudget = int) -> frozenset[str]:
    """All nodes that wait for this one, over others too; itself only in a ring. ``after``: see ``followers``."""
    found: set[str] = set()
    left = [name]
    while left:
        next_ones = after.get(left.pop(), ())
        spend(1 + len(next_ones))
        new = [one for one in next_ones if one not in found]
        found.update(new)
        left += new
    return frozenset(found)


def pairs_closing_cycles(
    fixed: Iterable[WaitPair], wanted: Sequence[WaitPair], spend: SpendBudget = int
) -> frozenset[WaitPair]:
    """Those of the wanted pairs that would close a ring with the fixed ones and the wanted ones taken before them.

    Without rings this takes time proportional to the number of pairs; only what lies between rings is searched, and
    each step of that is told to ``spend``.
    """
    fixed = list(dict.fromkeys(fixed))
    core = _nodes_on_cycles([*fixed, *wanted])
    after: dict[str, list[str]] = {}
    for first, then in fixed:
        if first in core and then in core:
            after.setdefault(first, []).append(then)
    refused: set[WaitPair] = set()
    known: tuple[str, frozenset[str]] = ("", frozenset())
    for first, then in dict.fromkeys(wanted):
        if first not in core or then not in core:
            continue
        if known[0] != then:  # a pair that ends at ``then`` changes nothing of what comes after it
            known = then, descendants_of(then, after, spend)
        if first in known[1]:
            refused.add((first, then))
        else:
            after.setdefault(first, []).append(then)
    return frozenset(refused)


def _nodes_on_cycles(pairs: Sequence[WaitPair]) -> set[str]:
    """The nodes that lie in a ring or on a way between two rings."""
    core = {name for pair in pairs for name in pair}
    for source, target in ((0, 1), (1, 0)):
        count = dict.fromkeys(core, 0)
        onward: dict[str, list[str]] = {}
        for pair in pairs:
            if pair[0] in core and pair[1] in core:
                count[pair[target]] += 1
                onward.setdefault(pair[source], []).append(pair[target])
        free = [name for name, number in count.items() if not number]
        for name in free:
            core.discard(name)
            for following in onward.get(name, ()):
                count[following] -= 1
                if not count[following]:
                    free.append(following)
    return core

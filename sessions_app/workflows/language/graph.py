"""The normalised graph of a workflow: nodes, scopes and wires, and the order in which nodes wait for each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from sessions_app.workflows.language.schema import NodeData, Port

Settings = TypeVar("Settings", bound=NodeData)
SettingsClass = type[Settings]
HIDDEN_PORT = "@"
"""Prefix of ports that no file declares: they carry values across scopes and into templates."""


@dataclass(frozen=True, slots=True)
class SourceRef:
    """Where a wire gets its value, within one scope."""

    kind: Literal["node", "input", "iteration", "prev"]
    port: str
    node: str = ""


@dataclass(frozen=True, slots=True)
class TargetRef:
    """Where a wire delivers its value, within one scope."""

    kind: Literal["node", "output", "current", "continue"]
    port: str
    node: str = ""


@dataclass(frozen=True, slots=True)
class Wire:
    """A connection within one scope. ``edge`` names the edge of the file that it belongs to."""

    source: SourceRef
    target: TargetRef
    edge: str = ""


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A node with all defaults filled in. For a gate, ``reset`` holds the nodes that a retry runs again."""

    id: str
    type: str
    label: str
    settings: NodeData
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    line: int = 0
    body: Scope | None = None
    references: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """The hidden port that fills each template ``{{ node.port }}`` in its texts."""
    reset: frozenset[str] = frozenset()

    def settings_of(self, kind: SettingsClass[Settings]) -> Settings:
        """Return the settings, which are of the class that the type of the node declares."""
        assert isinstance(self.settings, kind)  # noqa: S101
        return self.settings


@dataclass(frozen=True, slots=True)
class Scope:
    """Nodes that run together: a workflow, the inside of a loop, or a component.

    ``order`` lists each node after those that it waits for.
    """

    kind: Literal["workflow", "loop", "component"]
    nodes: Mapping[str, GraphNode]
    wires: tuple[Wire, ...]
    order: tuple[str, ...]
    waits_for: Mapping[str, frozenset[str]]
    incoming: Mapping[str, tuple[Wire, ...]]
    gates: tuple[str, ...] = ()
    negated: bool = False
    """For a loop: it continues while the value at its *continue* slot is false."""
    count: int = 0
    """Nodes in this scope and in every scope inside it, counted once for each use."""

    @property
    def leaves(self) -> tuple[str, ...]:
        """The nodes that no other node waits for, in order."""
        awaited: set[str] = set()
        awaited.update(*self.waits_for.values())
        return tuple(name for name in self.order if name not in awaited)

    def into(self, kind: str) -> tuple[Wire, ...]:
        """Return the wires that end at the border of the scope and have a target of this kind."""
        return tuple(wire for wire in self.wires if wire.target.kind == kind)


@dataclass(frozen=True, slots=True)
class WorkflowGraph:
    """A workflow that can be run."""

    name: str
    description: str
    root: Scope
    max_concurrent: int
    inputs: tuple[Port, ...] = ()
    """The inputs that a run can be given by name: those of its interface, and those that its triggers declare."""


WaitPair = tuple[str, str]
"""(node, a node that waits for it)"""
SpendBudget = Callable[[int], object]
"""Called with the number of steps that a search has taken; it may raise to stop the search."""


class CycleError(Exception):
    """Nodes wait for each other. ``nodes`` is one such cycle, with its first node repeated at the end."""

    def __init__(self, nodes: Sequence[str]):
        super().__init__(" → ".join(nodes))
        self.nodes = tuple(nodes)


def topological_order(names: Sequence[str], waits_for: Mapping[str, frozenset[str]]) -> tuple[str, ...]:
    """Return the names with each after those it waits for, otherwise in their given order. Raises CycleError."""
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
    cycle = list(path)[list(path).index(name) :]
    return [*reversed(cycle), cycle[-1]]


def followers_by_node(wires: Iterable[Wire]) -> dict[str, list[str]]:
    """Return, for each node, the nodes that wait for it directly, without duplicates."""
    found: dict[str, dict[str, None]] = {}
    for wire in wires:
        if wire.source.kind == "node" and wire.target.kind == "node":
            found.setdefault(wire.source.node, {})[wire.target.node] = None
    return {name: list(after) for name, after in found.items()}


def descendants_of(name: str, after: Mapping[str, Sequence[str]], spend: SpendBudget = int) -> frozenset[str]:
    """Return all nodes that wait for this one, directly or not; the node itself only if it is in a cycle.

    ``after`` is the result of ``followers_by_node``.
    """
    found: set[str] = set()
    left = [name]
    while left:
        followers = after.get(left.pop(), ())
        spend(1 + len(followers))
        new = [follower for follower in followers if follower not in found]
        found.update(new)
        left += new
    return frozenset(found)


def pairs_closing_cycles(
    fixed: Iterable[WaitPair], wanted: Sequence[WaitPair], spend: SpendBudget = int
) -> frozenset[WaitPair]:
    """Return the wanted pairs that would close a cycle with the fixed pairs and the wanted pairs accepted before them.

    Without cycles this takes time proportional to the number of pairs. Only nodes on cycles, or between two cycles,
    are searched, and each step of that search is reported to ``spend``.
    """
    fixed = list(dict.fromkeys(fixed))
    cyclic = _nodes_on_cycles([*fixed, *wanted])
    after: dict[str, list[str]] = {}
    for first, then in fixed:
        if first in cyclic and then in cyclic:
            after.setdefault(first, []).append(then)
    refused: set[WaitPair] = set()
    known: tuple[str, frozenset[str]] = ("", frozenset())
    for first, then in dict.fromkeys(wanted):
        if first not in cyclic or then not in cyclic:
            continue
        if known[0] != then:  # a pair that ends at ``then`` changes nothing of what comes after it
            known = then, descendants_of(then, after, spend)
        if first in known[1]:
            refused.add((first, then))
        else:
            after.setdefault(first, []).append(then)
    return frozenset(refused)


def _nodes_on_cycles(pairs: Sequence[WaitPair]) -> set[str]:
    """Return the nodes on a cycle, or on a path between two cycles."""
    left = {name for pair in pairs for name in pair}
    for source, target in ((0, 1), (1, 0)):
        count = dict.fromkeys(left, 0)
        onward: dict[str, list[str]] = {}
        for pair in pairs:
            if pair[0] in left and pair[1] in left:
                count[pair[target]] += 1
                onward.setdefault(pair[source], []).append(pair[target])
        free = [name for name, number in count.items() if not number]
        for name in free:
            left.discard(name)
            for following in onward.get(name, ()):
                count[following] -= 1
                if not count[following]:
                    free.append(following)
    return left

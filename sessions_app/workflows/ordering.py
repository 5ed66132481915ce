"""What comes after what in a scope."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from sessions_app.workflows.graph import Wire

Pair = tuple[str, str]
"""(node, a node that waits for it)"""
Spend = Callable[[int], object]
"""Told how many steps a search has taken; it may raise to end it."""


class CycleFound(Exception):
    """Nodes wait for each other; ``nodes`` are one ring of them, the first again at the end."""

    def __init__(self, nodes: Sequence[str]):
        super().__init__(" → ".join(nodes))
        self.nodes = tuple(nodes)


def ordered(names: Sequence[str], waits_for: Mapping[str, frozenset[str]]) -> tuple[str, ...]:
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
        raise CycleFound(_ring({name: sources - done for name, sources in left.items() if name not in done}))
    return tuple(order)


def _ring(left: Mapping[str, Iterable[str]]) -> list[str]:
    path = dict.fromkeys([name := next(iter(left))])
    while (name := min(left[name])) not in path:
        path[name] = None
    ring = list(path)[list(path).index(name) :]
    return [*reversed(ring), ring[-1]]


def followers(wires: Iterable[Wire]) -> dict[str, list[str]]:
    """The nodes that wait for each node directly, each once."""
    found: dict[str, dict[str, None]] = {}
    for wire in wires:
        if wire.source.kind == "node" and wire.target.kind == "node":
            found.setdefault(wire.source.node, {})[wire.target.node] = None
    return {name: list(after) for name, after in found.items()}


def descendants(name: str, after: Mapping[str, Sequence[str]], spend: Spend = int) -> frozenset[str]:
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


def closing_rings(fixed: Iterable[Pair], wanted: Sequence[Pair], spend: Spend = int) -> frozenset[Pair]:
    """Those of the wanted pairs that would close a ring with the fixed ones and the wanted ones taken before them.

    Without rings this takes time proportional to the number of pairs; only what lies between rings is searched, and
    each step of that is told to ``spend``.
    """
    fixed = list(dict.fromkeys(fixed))
    core = _between_rings([*fixed, *wanted])
    after: dict[str, list[str]] = {}
    for first, then in fixed:
        if first in core and then in core:
            after.setdefault(first, []).append(then)
    refused: set[Pair] = set()
    known: tuple[str, frozenset[str]] = ("", frozenset())
    for first, then in dict.fromkeys(wanted):
        if first not in core or then not in core:
            continue
        if known[0] != then:  # a pair that ends at ``then`` changes nothing of what comes after it
            known = then, descendants(then, after, spend)
        if first in known[1]:
            refused.add((first, then))
        else:
            after.setdefault(first, []).append(then)
    return frozenset(refused)


def _between_rings(pairs: Sequence[Pair]) -> set[str]:
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

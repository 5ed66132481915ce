"""What comes after what in a scope."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sessions_app.workflows.graph import Wire


class CycleFound(Exception):
    """Nodes wait for each other; ``nodes`` are one ring of them, the first again at the end."""

    def __init__(self, nodes: Sequence[str]):
        super().__init__(" → ".join(nodes))
        self.nodes = tuple(nodes)


def ordered(names: Sequence[str], waits_for: Mapping[str, frozenset[str]]) -> tuple[str, ...]:
    """Each after what it waits for, else as they came. Raises CycleFound."""
    left = {name: set(waits_for[name]) & set(names) for name in names}
    after: dict[str, list[str]] = {name: [] for name in names}
    for name, sources in left.items():
        for source in sources:
            after[source].append(name)
    order = [name for name in names if not left[name]]
    for name in order:
        for follower in sorted(after[name], key=names.index) if len(after[name]) > 1 else after[name]:
            left[follower].discard(name)
            if not left[follower]:
                order.append(follower)
    if len(order) < len(names):
        done = set(order)
        raise CycleFound(_ring({name: sources - done for name, sources in left.items() if name not in done}))
    return tuple(order)


def _ring(left: Mapping[str, Iterable[str]]) -> list[str]:
    path = [next(iter(left))]
    while (source := min(left[path[-1]])) not in path:
        path.append(source)
    ring = path[path.index(source) :]
    return [*reversed(ring), ring[-1]]


def descendants(name: str, wires: Iterable[Wire]) -> frozenset[str]:
    """All nodes that wait for this one, over others too; itself only in a ring."""
    after: dict[str, list[str]] = {}
    for wire in wires:
        if wire.source.kind == "node" and wire.target.kind == "node":
            after.setdefault(wire.source.node, []).append(wire.target.node)
    found: set[str] = set()
    left = [name]
    while left:
        new = [one for one in after.get(left.pop(), ()) if one not in found]
        found.update(new)
        left += new
    return frozenset(found)

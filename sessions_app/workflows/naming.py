"""What templates name: the node that each means, and whether that has ended by the time the template is filled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from sessions_app.workflows.ordering import Pair, Spend, closing_rings, followers
from sessions_app.workflows.reading import Place
from sessions_app.workflows.schema import Node as WrittenNode
from sessions_app.workflows.wiring import ScopeName, Wires


@dataclass(frozen=True, slots=True)
class Meant:
    """A node that a template names, and the one beside it that has the template or lies around it."""

    node: str
    beside: str
    scope: ScopeName


@dataclass(frozen=True, slots=True)
class Template:
    """One ``{{ asked.port }}`` in a text of a node; ``below`` counts lines from its place."""

    node: str
    asked: str
    port: str
    place: Place
    below: int
    meant: Meant | None


class Names:
    """The nodes of one body by what templates can call them: an id, else a label, as it is or like_this."""

    def __init__(self, written: Mapping[str, WrittenNode]):
        self._written = written
        self._labels: dict[tuple[ScopeName, str], list[str]] = {}
        self._words: dict[tuple[ScopeName, str], list[str]] = {}
        for name, node in written.items():
            scope, label = node.parent_id or "", str(node.data.get("label", ""))
            self._labels.setdefault((scope, label), []).append(name)
            self._words.setdefault((scope, label.lower().replace(" ", "_")), []).append(name)

    def meant(self, name: str, asked: str) -> Meant | None:
        """The node that ``asked`` means in a template of the node ``name``: the nearest one beside or around it."""
        for beside, scope in self._around(name):
            if found := self._called(asked, scope, beside):
                return Meant(found, beside, scope)
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


def unfillable(templates: Iterable[Template], wires: Wires, spend: Spend) -> frozenset[tuple[ScopeName, Pair]]:
    """The waits that templates ask for and cannot have, as a node would wait for itself; the first ones win.

    ``wires``: those of the edges. ``spend`` is told each step of a search and may raise to end it.
    """
    wanted: dict[ScopeName, dict[Pair, None]] = {}
    for one in templates:
        if one.meant is not None:
            wanted.setdefault(one.meant.scope, {})[one.meant.node, one.meant.beside] = None
    refused: set[tuple[ScopeName, Pair]] = set()
    for scope, pairs in wanted.items():
        fixed = [(first, then) for first, after in followers(wires.get(scope, ())).items() for then in after]
        refused.update((scope, pair) for pair in closing_rings(fixed, list(pairs), spend))
    return frozenset(refused)

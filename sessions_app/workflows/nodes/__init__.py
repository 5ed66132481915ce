"""Node types, one file each, found by discovery.

A type says which settings a node of it has, which ports it has without saying so, and what is to be done when all
its inputs are there: nothing more (``Finished``), work outside of the engine (``Ask``), or why it cannot be
(``Failed``). What the work came to becomes outputs by ``end``.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from sessions_app.workflows.graph import Node
from sessions_app.workflows.ports import named
from sessions_app.workflows.schema import NodeData, Port
from sessions_app.workflows.templates import INPUTS
from sessions_app.workflows.values import MISSING, Unfit, fit


@dataclass(frozen=True, slots=True)
class Finished:
    """Nothing is left to be done."""

    outputs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Ask:
    """Work outside of the engine; ``request`` can be kept as JSON and says all that it needs."""

    request: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Failed:
    """It cannot be done; the message is for people."""

    message: str
    outputs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Retry:
    """A gate has not been passed: what leads to it is done again, told this."""

    outputs: Mapping[str, Any]


Beginning = Finished | Ask | Failed | Retry
Ending = Finished | Failed | Ask
"""``Ask``: the work is to be done once more, as this request says."""
Limited = Callable[[Sequence[Mapping[str, Any]]], list[Any]]
"""``sessions_app.workflows.limited.run``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What a node is begun with. ``run`` is what started the run; ``session`` the agent session that it goes on in."""

    node: Node
    inputs: Mapping[str, Any]
    run: Mapping[str, Any] = field(default_factory=dict)
    retries: int = 0
    feedback: str = ""
    session: str = ""

    def look_up(self, name: str, port: str) -> Any:
        """The value of a template, or MISSING."""
        if name != INPUTS:
            hidden = self.node.references.get((name, port), "")
            return self.inputs.get(hidden, MISSING)
        if port in self.inputs:
            return self.inputs[port]
        return MISSING if named(self.node.inputs, port) is None else None


@dataclass(frozen=True, slots=True)
class Done:
    """Work that has ended: what was asked, and what it came to, as its type says."""

    request: Mapping[str, Any]
    result: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """Something wrong with the settings of a node. ``key`` is where in its data, ``below`` lines below that."""

    code: str
    message: str
    fix: str
    key: tuple[str | int, ...] = ()
    below: int = 0
    is_error: bool = True


def _no_texts(settings: Any) -> Iterable[tuple[tuple[str | int, ...], str]]:
    return ()


def _no_complaints(node: Node) -> Iterable[Complaint]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeType:
    """The declaration of a node type."""

    name: str
    title: str
    settings: type[NodeData]
    aliases: tuple[str, ...] = ()
    inputs: tuple[Port, ...] = ()
    outputs: tuple[Port, ...] = ()
    implied: Callable[[Any], Iterable[Port]] = lambda settings: ()
    """Outputs that follow from the settings, beside those that are written."""
    texts: Callable[[Any], Iterable[tuple[tuple[str | int, ...], str]]] = _no_texts
    """The texts with templates: where in the data, and the text."""
    check: Callable[[Node], Iterable[Complaint]] = _no_complaints
    begin: Callable[[Moment], Beginning] | None = None
    """None: the engine does it, for loops and components, or it is an edge of its scope."""
    end: Callable[[Node, Done, Limited], Ending] | None = None
    is_open: bool = False
    """It takes and gives what its file says, so that no port of it is unknown."""


@cache
def node_types() -> Mapping[str, NodeType]:
    """Every node type by its name and its aliases."""
    found: dict[str, NodeType] = {}
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        kind: NodeType = importlib.import_module(module.name).TYPE
        found |= dict.fromkeys((kind.name, *kind.aliases), kind)
    return found


def type_of(node: Node) -> NodeType:
    """The type of a node."""
    return node_types()[node.type]


def fitted(ports: Iterable[Port], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values as their ports say. Raises Unfit with the name of the port."""
    by_name = {one.name: one for one in ports}
    found = {}
    for name, value in values.items():
        try:
            found[name] = fit(value, by_name[name].type) if name in by_name else value
        except Unfit as error:
            raise Unfit(f"“{name}”: {error}") from error
    return found

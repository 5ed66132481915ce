"""Node types: what each declares, and how its outputs are extracted from text.

Every module of this package declares its types in ``TYPES``; ``node_types`` finds them all.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from sessions_app.workflows.language.graph import GraphNode
from sessions_app.workflows.language.sandbox import SandboxError
from sessions_app.workflows.language.schema import NodeData, Port, port_named
from sessions_app.workflows.language.values import INPUTS_NAME, MISSING, ConversionError, convert_value, value_at_path


@dataclass(frozen=True, slots=True)
class NodeFinished:
    """Nothing is left to be done."""

    outputs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class WorkRequest:
    """Work outside of the engine; ``request`` can be kept as JSON and says all that it needs."""

    request: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class NodeFailed:
    """It cannot be done; the message is for people."""

    message: str
    outputs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GateRetry:
    """A gate has not been passed: what leads to it is done again, told this."""

    outputs: Mapping[str, Any]


BeginResult = NodeFinished | WorkRequest | NodeFailed | GateRetry
EndResult = NodeFinished | NodeFailed | WorkRequest
"""``Ask``: the work is to be done once more, as this request says."""
RunInSandbox = Callable[[Sequence[Mapping[str, Any]]], list[Any]]
"""``sessions_app.workflows.language.sandbox.run_in_sandbox``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeContext:
    """What a node is begun with. ``run`` is what started the run; ``session`` the agent session that it goes on in."""

    node: GraphNode
    inputs: Mapping[str, Any]
    run: Mapping[str, Any] = field(default_factory=dict)
    retries: int = 0
    feedback: str = ""
    session: str = ""

    def look_up(self, name: str, port: str) -> Any:
        """The value of a template, or MISSING."""
        if name != INPUTS_NAME:
            hidden = self.node.references.get((name, port), "")
            return self.inputs.get(hidden, MISSING)
        if port in self.inputs:
            return self.inputs[port]
        return MISSING if port_named(self.node.inputs, port) is None else None


@dataclass(frozen=True, slots=True)
class FinishedWork:
    """Work that has ended: what was asked, and what it came to, as its type says."""

    request: Mapping[str, Any]
    result: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsIssue:
    """Something wrong with the settings of a node. ``key`` is where in its data, ``below`` lines below that."""

    code: str
    message: str
    fix: str
    key: tuple[str | int, ...] = ()
    below: int = 0
    is_error: bool = True


def _without_templates(settings: Any) -> Iterable[tuple[tuple[str | int, ...], str]]:
    return ()


def _without_issues(node: GraphNode) -> Iterable[SettingsIssue]:
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
    texts: Callable[[Any], Iterable[tuple[tuple[str | int, ...], str]]] = _without_templates
    """The texts with templates: where in the data, and the text."""
    check: Callable[[GraphNode], Iterable[SettingsIssue]] = _without_issues
    begin: Callable[[NodeContext], BeginResult] | None = None
    """None: the engine does it, for loops and components, or it is an edge of its scope."""
    end: Callable[[GraphNode, FinishedWork, RunInSandbox], EndResult] | None = None
    is_open: bool = False
    """It takes and gives what its file says, so that no port of it is unknown."""


@cache
def node_types() -> Mapping[str, NodeType]:
    """Every node type by its name and its aliases."""
    found: dict[str, NodeType] = {}
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        types: Sequence[NodeType] = importlib.import_module(module.name).TYPES
        for node_type in types:
            found |= dict.fromkeys((node_type.name, *node_type.aliases), node_type)
    return found


def type_of(node: GraphNode) -> NodeType:
    """The type of a node."""
    return node_types()[node.type]


def convert_ports(ports: Iterable[Port], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values as their ports say. Raises Unfit with the name of the port."""
    by_name = {one.name: one for one in ports}
    found = {}
    for name, value in values.items():
        try:
            found[name] = convert_value(value, by_name[name].type) if name in by_name else value
        except ConversionError as error:
            raise ConversionError(f"“{name}”: {error}") from error
    return found


def extract_outputs(
    ports: Sequence[Port], plain: Mapping[str, Any], text: str, limited: RunInSandbox
) -> tuple[dict[str, Any], str]:
    """Every output, and what is wrong with one of them or “”. ``plain`` has those that need no search."""
    found: dict[str, Any] = dict(plain)
    patterns = [one for one in ports if one.extract and one.extract.type == "regex"]
    trouble = ""
    try:
        matches = limited(
            [{"operation": "regex", "pattern": _extraction_pattern(one), "text": text} for one in patterns]
        )
        found |= {one.name: match for one, match in zip(patterns, matches, strict=True)}
    except SandboxError as error:
        trouble = str(error)
        found |= dict.fromkeys(one.name for one in patterns)
    for one in ports:
        if one.extract and one.extract.type == "json_path":
            found[one.name] = value_at_path(text, one.extract.pattern)
        elif one.extract and one.extract.type == "full":
            found[one.name] = text
        found.setdefault(one.name, text)
        try:
            found[one.name] = convert_value(found[one.name], one.type)
        except ConversionError as error:
            found[one.name] = None
            trouble = trouble or f"the output “{one.name}”: {error}"
    return found, trouble


def _extraction_pattern(port: Port) -> str:
    return port.extract.pattern if port.extract else ""

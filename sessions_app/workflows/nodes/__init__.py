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
    """The node has finished."""

    outputs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class WorkRequest:
    """The node needs work outside the engine. ``request`` is JSON, and contains everything that the work needs."""

    request: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class NodeFailed:
    """The node has failed; users see the message."""

    message: str
    outputs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GateRetry:
    """A gate was not passed: the nodes before it run again, with these outputs as feedback."""

    outputs: Mapping[str, Any]


BeginResult = NodeFinished | WorkRequest | NodeFailed | GateRetry
EndResult = NodeFinished | NodeFailed | WorkRequest
"""``WorkRequest``: the work must be done again, as this request says."""
RunInSandbox = Callable[[Sequence[Mapping[str, Any]]], list[Any]]
"""``sessions_app.workflows.language.sandbox.run_in_sandbox``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeContext:
    """What a node begins with.

    ``run`` holds the inputs of the run, ``session`` the id of the agent session to continue, ``retries`` and
    ``feedback`` tell how often and why a gate has sent the node back.
    """

    node: GraphNode
    inputs: Mapping[str, Any]
    run: Mapping[str, Any] = field(default_factory=dict)
    retries: int = 0
    feedback: str = ""
    session: str = ""

    def look_up(self, name: str, port: str) -> Any:
        """Return the value of the template ``{{ name.port }}``, or MISSING."""
        if name != INPUTS_NAME:
            hidden = self.node.references.get((name, port), "")
            return self.inputs.get(hidden, MISSING)
        if port in self.inputs:
            return self.inputs[port]
        if port_named(self.node.inputs, port) is None:
            return MISSING
        return None


@dataclass(frozen=True, slots=True)
class FinishedWork:
    """Work that has ended: its request, and its result in the form that the node type defines."""

    request: Mapping[str, Any]
    result: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsIssue:
    """A problem with the settings of a node, at ``key`` in its data and ``below`` lines further down."""

    code: str
    message: str
    fix: str
    key: tuple[str | int, ...] = ()
    below: int = 0
    is_error: bool = True


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
    """Returns the outputs that follow from the settings, in addition to the declared ones."""
    texts: Callable[[Any], Iterable[tuple[tuple[str | int, ...], str]]] = lambda settings: ()
    """Returns the texts that can contain templates, each with its place in the data."""
    check: Callable[[GraphNode], Iterable[SettingsIssue]] = lambda node: ()
    begin: Callable[[NodeContext], BeginResult] | None = None
    """Starts the node. None: the engine itself runs it (loop, component), or it never runs (interface)."""
    end: Callable[[GraphNode, FinishedWork, RunInSandbox], EndResult] | None = None
    is_open: bool = False
    """The type accepts any port, so no port of it is reported as unknown."""


@cache
def node_types() -> Mapping[str, NodeType]:
    """Return every node type by its name and its aliases."""
    found: dict[str, NodeType] = {}
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        types: Sequence[NodeType] = importlib.import_module(module.name).TYPES
        for node_type in types:
            found |= dict.fromkeys((node_type.name, *node_type.aliases), node_type)
    return found


def type_of(node: GraphNode) -> NodeType:
    """Return the type of a node."""
    return node_types()[node.type]


def ports_of(kind: NodeType, settings: NodeData) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
    """Return the declared ports, or those of the type if none is declared, and the outputs implied by the settings."""
    if settings.inputs is None and settings.outputs is None:
        inputs, outputs = kind.inputs, list(kind.outputs)
    else:
        inputs, outputs = tuple(settings.inputs or ()), list(settings.outputs or ())
    known = {port.name for port in outputs}
    outputs += [port for port in kind.implied(settings) if port.name not in known]
    return inputs, tuple(outputs)


def convert_ports(ports: Iterable[Port], values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert values to the types of their ports. Raises ConversionError with the name of the port."""
    by_name = {port.name: port for port in ports}
    found = {}
    for name, value in values.items():
        try:
            if name in by_name:
                found[name] = convert_value(value, by_name[name].type)
            else:
                found[name] = value
        except ConversionError as error:
            raise ConversionError(f"“{name}”: {error}") from error
    return found


def extract_outputs(
    ports: Sequence[Port], plain: Mapping[str, Any], text: str, run_in_sandbox: RunInSandbox
) -> tuple[dict[str, Any], str]:
    """Return every output, and the first problem with one of them or “”.

    ``plain`` holds the outputs that need no extraction from ``text``.
    """
    found: dict[str, Any] = dict(plain)
    names: list[str] = []
    requests: list[dict[str, Any]] = []
    for port in ports:
        if port.extract and port.extract.type == "regex":
            names.append(port.name)
            requests.append({"operation": "regex", "pattern": port.extract.pattern, "text": text})
    problem = ""
    try:
        matches = run_in_sandbox(requests)
        found |= dict(zip(names, matches, strict=True))
    except SandboxError as error:
        problem = str(error)
        found |= dict.fromkeys(names)
    for port in ports:
        if port.extract and port.extract.type == "json_path":
            found[port.name] = value_at_path(text, port.extract.pattern)
        elif port.extract and port.extract.type == "full":
            found[port.name] = text
        found.setdefault(port.name, text)
        try:
            found[port.name] = convert_value(found[port.name], port.type)
        except ConversionError as error:
            found[port.name] = None
            problem = problem or f"the output “{port.name}”: {error}"
    return found, problem

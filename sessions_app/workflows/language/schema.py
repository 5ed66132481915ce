"""Pydantic models of workflow files (versions 1 to 3), and helpers for ports and array ports."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

ValueType = Literal["string", "number", "boolean", "json", "file", "files", "any"]
NameText = Annotated[str, Field(min_length=1, max_length=200)]
NodeId = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_.:\-]+$")]


class Part(BaseModel):
    """Base of all parts of a file: keys are in camelCase, and unknown keys are kept."""

    model_config = ConfigDict(extra="allow", populate_by_name=True, alias_generator=to_camel)


class Extract(Part):
    """How an output is extracted from the text of a node."""

    type: Literal["regex", "json_path", "full"]
    pattern: str = Field(default="", max_length=1000)


class Port(Part):
    """A named input or output."""

    name: NameText
    label: str | None = None
    type: ValueType = "any"
    required: bool = False
    default: Any = None
    description: str | None = None
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")
    extract: Extract | None = None
    array: bool = False
    array_index: int | None = Field(default=None, ge=0)
    array_parent: str | None = None


class DockSlot(Part):
    """A slot at the inside of a loop: the iteration number, whether to continue, or a value for the next iteration."""

    name: NameText
    type: Literal["iteration", "continue", "feedback"]
    value_type: ValueType | None = None
    label: str | None = None
    description: str | None = None
    negate: bool = False
    """For a *continue* slot: continue while its value is false, as review loops do with *approved*."""


class NodeData(Part):
    """Settings that every node can have; each type adds its own."""

    label: str = ""
    node_type: str | None = None
    inputs: list[Port] | None = None
    outputs: list[Port] | None = None
    continue_on_failure: bool = False


class Node(Part):
    """One node as written. ``data.nodeType`` takes precedence over ``type``."""

    id: NodeId
    type: str | None = None
    position: dict[str, float] | None = None
    style: dict[str, Any] | None = None
    parent_id: str | None = None
    extent: str | None = None
    data: dict[str, Any] = Field(default_factory=dict)


class Edge(Part):
    """An edge from an output to an input; the default handles are ``output:output`` and ``input:input``."""

    id: str | None = None
    source: str
    target: str
    source_handle: str | None = None
    target_handle: str | None = None


class Interface(Part):
    """The inputs and outputs of a component."""

    inputs: list[Port] = Field(default_factory=list)
    outputs: list[Port] = Field(default_factory=list)


class Body(Part):
    """Nodes and the edges between them."""

    nodes: list[Node]
    edges: list[Edge]


class ComponentBody(Body):
    """A component that is defined in the file."""

    interface: Interface


class Metadata(Part):
    """Name and description of the workflow."""

    name: str = Field(min_length=1, max_length=200)
    description: str | None = None
    root_directory: str | None = None


class WorkflowFile(Body):
    """A whole file."""

    version: int = Field(ge=1, le=3)
    metadata: Metadata
    interface: Interface | None = None
    components: dict[str, ComponentBody] = Field(default_factory=dict)
    max_concurrent: int | None = Field(default=None, ge=1, le=32)


_ELEMENT: Final = re.compile(r"(?P<parent>.+)\[(?P<index>\d{1,4})\]\Z")


def make_port(name: str, kind: ValueType = "any") -> Port:
    """Return a port with a name and a type only."""
    return Port(name=name, type=kind)


def port_named(ports: Iterable[Port], name: str) -> Port | None:
    """Return the port with this name; None if there is none."""
    return next((port for port in ports if port.name == name), None)


def array_element_of(name: str) -> tuple[str, int] | None:
    """Return the array and index of an element port, as ("values", 2) for ``values[2]``; None for a plain name."""
    found = _ELEMENT.match(name)
    if found:
        return (found["parent"], int(found["index"]))
    return None


def merge_array_ports(ports: Iterable[Port], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with those of array element ports collected into arrays, ordered by index.

    Elements without a value are left out.
    """
    slots = {port.name: (port.array_parent, port.array_index or 0) for port in ports if port.array_parent}
    arrays = {port.name for port in ports if port.array} | {parent for parent, _ in slots.values()}
    found: dict[str, list[tuple[int, Any]]] = {}
    plain: dict[str, Any] = {}
    for name, value in values.items():
        place = slots.get(name) or array_element_of(name)
        if place is not None and place[0] in arrays:
            found.setdefault(place[0], []).append((place[1], value))
        else:
            plain[name] = value
    missing = {parent for parent, _ in slots.values()} - plain.keys()
    merged = plain | {name: [] for name in missing}
    for name, pairs in found.items():
        pairs.sort(key=lambda pair: pair[0])
        merged[name] = [value for _, value in pairs]
    return merged

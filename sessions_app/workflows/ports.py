"""Ports that nodes have without saying so, and arrays of ports."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from sessions_app.workflows.schema import Port, ValueType

_ELEMENT: Final = re.compile(r"(?P<parent>.+)\[(?P<index>\d{1,4})\]\Z")


def port(name: str, kind: ValueType = "any") -> Port:
    """A port that is nothing but a name and a type."""
    return Port(name=name, type=kind)


def named(ports: Iterable[Port], name: str) -> Port | None:
    """The port of this name."""
    return next((one for one in ports if one.name == name), None)


def element_of(name: str) -> tuple[str, int] | None:
    """``values[2]`` is element 2 of ``values``; None for a plain name."""
    found = _ELEMENT.match(name)
    return (found["parent"], int(found["index"])) if found else None


def gathered(ports: Iterable[Port], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with those of array ports put together, in the order of their indexes; unconnected ones left out."""
    slots = {one.name: (one.array_parent, one.array_index or 0) for one in ports if one.array_parent}
    arrays = {one.name for one in ports if one.array} | {parent for parent, _ in slots.values()}
    found: dict[str, list[tuple[int, Any]]] = {}
    plain: dict[str, Any] = {}
    for name, value in values.items():
        place = slots.get(name) or element_of(name)
        if place is not None and place[0] in arrays:
            found.setdefault(place[0], []).append((place[1], value))
        else:
            plain[name] = value
    missing = {parent for parent, _ in slots.values()} - plain.keys()
    together = {name: [] for name in missing} | {
        name: [value for _, value in sorted(pairs, key=lambda pair: pair[0])] for name, pairs in found.items()
    }
    return plain | together

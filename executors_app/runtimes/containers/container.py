"""A container as the Docker engine lists or inspects it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

ENDED_STATUSES: Final = frozenset({"created", "exited", "dead"})
"""Statuses of a container in which nothing runs."""


@dataclass(frozen=True, slots=True)
class Container:
    """A container as listed or inspected; a list does not show how it ended."""

    id: str
    name: str
    status: str
    """created, running, paused, restarting, removing, exited or dead."""
    labels: Mapping[str, str]
    ports: Mapping[int, int] = field(default_factory=dict)
    """Published ports, by the port inside."""
    image: str = ""
    networks: Mapping[str, str] = field(default_factory=dict)
    """Network ids by name; an id is empty if the container was never started."""
    exit_code: int | None = None
    out_of_memory: bool = False
    created: float = 0.0
    """Seconds since 1970 by the engine's clock; known only from a list."""


def container_from_list(entry: Mapping[str, Any]) -> Container:
    """Parse an entry of a container list."""
    ports = {}
    for port in entry.get("Ports") or ():
        if port.get("PublicPort"):
            ports[int(port["PrivatePort"])] = int(port["PublicPort"])
    name = next(iter(entry.get("Names") or ()), "").removeprefix("/")
    created = float(entry.get("Created") or 0)
    return Container(entry["Id"], name, entry["State"], entry.get("Labels") or {}, ports, created=created)


def container_from_inspect(entry: Mapping[str, Any]) -> Container:
    """Parse the result of an inspection."""
    state, networking = entry["State"], entry["NetworkSettings"]
    ports = {}
    for inside, published in (networking.get("Ports") or {}).items():
        if published:
            ports[int(inside.partition("/")[0])] = int(published[0]["HostPort"])
    networks = networking.get("Networks") or {}
    return Container(
        id=entry["Id"],
        name=entry["Name"].removeprefix("/"),
        status=state["Status"],
        labels=entry["Config"].get("Labels") or {},
        ports=ports,
        image=entry["Image"],
        networks={name: network.get("NetworkID", "") for name, network in networks.items()},
        exit_code=state.get("ExitCode"),
        out_of_memory=bool(state.get("OOMKilled")),
    )

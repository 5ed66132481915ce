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
    ports = {
        int(port["PrivatePort"]): int(port["PublicPort"]) for port in entry.get("Ports") or () if port.get("PublicPort")
    }
    name = next(iter(entry.get("Names") or ()), "").removeprefix("/")
    created = float(entry.get("Created") or 0)
    return Container(entry["Id"], name, entry["State"], entry.get("Labels") or {}, ports, created=created)


def container_from_inspect(entry: Mapping[str, Any]) -> Container:
    """Parse the result of an inspection."""
    state, networking = entry["State"], entry["NetworkSettings"]
    ports = {
        int(inside.partition("/")[0]): int(published[0]["HostPort"])
        for inside, published in (networking.get("Ports") or {}).items()
        if published
    }
    return Container(
        id=entry["Id"],
        name=entry["Name"].removeprefix("/"),
        status=state["Status"],
        labels=entry["Config"].get("Labels") or {},
        ports=ports,
        image=entry["Image"],
        networks={name: one.get("NetworkID", "") for name, one in (networking.get("Networks") or {}).items()},
        exit_code=state.get("ExitCode"),
        out_of_memory=bool(state.get("OOMKilled")),
    )

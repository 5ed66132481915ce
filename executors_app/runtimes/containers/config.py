"""The settings that all Docker executors have, checked."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

_MIN_MEMORY_MB: Final = 128
_BLOCK: Final = 29
"""Prefix length of one container's network: six addresses."""


@dataclass(frozen=True, slots=True)
class DockerConfig:
    """The settings of one executor; every one has a default."""

    image: str = ""
    """Empty: ``KANDEV_AGENTCTL_IMAGE``."""
    memory_mb: int = 4096
    """MiB of memory for agent and agentctl together; no swap."""
    pids: int = 1024
    cpus: float = 0.0
    """0: as many as there are."""
    subnets: str = ""
    """A range such as ``10.213.0.0/16`` from which each container gets its network; empty: the engine's pools."""

    def networks_for(self, execution_id: str) -> Iterator[str]:
        """Yield subnets to try, likeliest free first; a single empty string lets the engine choose."""
        if not self.subnets:
            yield ""
            return
        whole = ipaddress.ip_network(self.subnets)
        blocks = 2 ** (_BLOCK - whole.prefixlen)
        first = int.from_bytes(hashlib.sha256(execution_id.encode()).digest()[:8], "big")
        for step in range(min(blocks, 64)):
            start = int(whole.network_address) + (first + step) % blocks * 2 ** (32 - _BLOCK)
            yield f"{ipaddress.ip_address(start)}/{_BLOCK}"


def read_docker_config(
    config: Mapping[str, Any], runtime: str = "local_docker", others: Sequence[str] = ()
) -> DockerConfig:
    """Return the checked settings; raises ValueError with one clear sentence.

    ``others`` are further names that ``runtime`` accepts and checks itself.
    """
    known = [*others, *(field.name for field in fields(DockerConfig))]
    if unknown := sorted(set(map(str, config)) - set(known)):
        raise ValueError(f"{runtime} has no setting {', '.join(unknown)}. Its settings are {', '.join(known)}.")
    config = {name: value for name, value in config.items() if name not in others}
    read = DockerConfig(**config)
    check_text("image", read.image)
    _check_number("memory_mb", read.memory_mb, _MIN_MEMORY_MB, whole=True)
    _check_number("pids", read.pids, 16, whole=True)
    _check_number("cpus", read.cpus, 0, whole=False)
    _check_subnets(read.subnets)
    return read


def check_text(name: str, value: object) -> None:
    """Raise ValueError for anything but a string without spaces."""
    if not isinstance(value, str) or any(letter.isspace() for letter in value):
        raise ValueError(f"{name} must be a string without spaces, not {value!r}.")


def _check_number(name: str, value: object, least: float, *, whole: bool) -> None:
    kinds = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value < 2**31:
        raise ValueError(f"{name} must be a {'whole ' if whole else ''}number of at least {least:g}, not {value!r}.")


def _check_subnets(value: object) -> None:
    check_text("subnets", value)
    try:
        network = ipaddress.ip_network(str(value)) if value else None
    except ValueError as error:
        raise ValueError(f"subnets must be a network such as 10.213.0.0/16: {error}.") from error
    if network is not None and (network.version != 4 or network.prefixlen > _BLOCK or not network.is_private):
        raise ValueError(f"subnets must be a private IPv4 network of /{_BLOCK} or larger, not {value}.")

"""One Docker engine, spoken to for a moment: every call has a time limit, and its errors are ours.

*The engine does not answer* and *the engine says no* are different things: the first is
RuntimeUnavailable and proves nothing of any container.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import docker
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from requests.exceptions import RequestException

from executors_app.errors import LaunchFailed, RuntimeUnavailable

T = TypeVar("T")

_PATIENCE: Final = 60.0
_USUAL: Final = "unix:///var/run/docker.sock"
_LAST_WORDS: Final = 20
"""Lines of a container's log that are shown to people."""


class EngineRefused(LaunchFailed):
    """The Docker engine refused."""

    def __init__(self, error: APIError):
        super().__init__(f"The Docker engine refused: {error.explanation or error}")
        self.status = int(error.status_code or 0)
        """HTTP status: 404 not there, 409 in conflict."""


@dataclass(frozen=True, slots=True)
class Container:
    """A container as one look shows it; a list tells nothing of how it ended."""

    id: str
    name: str
    status: str
    """created, running, paused, restarting, removing, exited or dead."""
    labels: Mapping[str, str]
    ports: Mapping[int, int] = field(default_factory=dict)
    """Published on the loopback, by the port inside."""
    image: str = ""
    networks: Mapping[str, str] = field(default_factory=dict)
    """Network id by name; empty text where it was never started."""
    exit_code: int | None = None
    out_of_memory: bool = False


class Engine:
    """Calls to one engine; made by `connected`. All block."""

    def __init__(self, client: Any):
        self._client = client

    def identity(self) -> str:
        """What tells this engine from every other, for good."""
        return str(_asked(self._client.info).get("ID", ""))

    def containers(self, labels: Mapping[str, str]) -> list[Container]:
        """All that have these labels, running or not, in one call."""
        wanted = {"label": [f"{name}={value}" for name, value in labels.items()]}
        return [_listed(entry) for entry in _asked(lambda: self._client.containers(all=True, filters=wanted))]

    def find(self, name: str) -> Container | None:
        """The container of that name or id, looked at closely."""
        try:
            return _inspected(_asked(lambda: self._client.inspect_container(name)))
        except EngineRefused as error:
            if error.status == 404:
                return None
            raise

    def image_id(self, image: str) -> str:
        """The id of an image that the engine has; it is never pulled."""
        try:
            return str(_asked(lambda: self._client.inspect_image(image))["Id"])
        except EngineRefused as error:
            if error.status == 404:
                raise RuntimeUnavailable(f"The Docker engine has no image {image!r}: make image builds it.") from error
            raise

    def create(self, name: str, options: Mapping[str, Any], host: Mapping[str, Any]) -> None:
        """Make a container, started by nobody yet; EngineRefused 409 where the name is taken."""
        settings = self._client.create_host_config(**host)
        _asked(lambda: self._client.create_container(name=name, host_config=settings, **options))

    def start(self, container_id: str) -> None:
        """Start it; nothing where it runs."""
        _asked(lambda: self._client.start(container_id))

    def unpause(self, container_id: str) -> None:
        """Let it go on."""
        _asked(lambda: self._client.unpause(container_id))

    def stop(self, container_id: str, grace: float) -> None:
        """TERM, and KILL after ``grace`` seconds; returns when it has ended."""
        _asked(lambda: self._client.stop(container_id, timeout=round(grace)))

    def remove(self, container_id: str) -> None:
        """Remove a stopped container; its mounts stay."""
        _unless_absent(lambda: self._client.remove_container(container_id))

    def last_words(self, container_id: str) -> str:
        """The end of its log."""
        try:
            said = _asked(lambda: self._client.logs(container_id, tail=_LAST_WORDS))
        except EngineRefused:
            return "it left no log."
        return bytes(said).decode("utf-8", "replace").strip()[-2000:] or "it said nothing."

    def network(self, name: str) -> str | None:
        """The id of the network of exactly that name."""
        found = _asked(lambda: self._client.networks(names=[name]))
        return next((str(one["Id"]) for one in found if one["Name"] == name), None)

    def make_network(self, name: str, labels: Mapping[str, str], subnet: str) -> str:
        """A bridge of its own; ``subnet`` empty: from the engine's own pools. EngineRefused where there is no room."""
        ipam = docker.types.IPAMConfig(pool_configs=[docker.types.IPAMPool(subnet=subnet)]) if subnet else None
        made = _asked(
            lambda: self._client.create_network(
                name, driver="bridge", ipam=ipam, labels=dict(labels), check_duplicate=True
            )
        )
        return str(made["Id"])

    def connect(self, container_id: str, network_id: str) -> None:
        """Let a stopped container have that network from its next start on."""
        _asked(lambda: self._client.connect_container_to_network(container_id, network_id))

    def drop_network(self, name: str, container_id: str) -> None:
        """Remove the network of a stopped container: the addresses are few."""
        _unless_absent(lambda: self._client.disconnect_container_from_network(container_id, name, force=True))
        _unless_absent(lambda: self._client.remove_network(name))


@contextmanager
def connected(address: str, timeout: float = _PATIENCE) -> Iterator[Engine]:
    """An engine at ``address`` (empty: the usual socket of this machine); RuntimeUnavailable.

    ``timeout`` is for each call, in seconds.
    """
    _check_socket(address or _USUAL, timeout)
    client = _asked(lambda: docker.APIClient(base_url=address or None, timeout=max(timeout, 0.05), version="auto"))
    try:
        yield Engine(client)
    finally:
        client.close()


def _check_socket(address: str, timeout: float) -> None:
    """Say at once that nobody listens at a socket: the client would try for a while, and leave descriptors open."""
    kind, _, path = address.partition("://")
    if kind not in ("unix", "http+unix"):
        return
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(max(timeout, 0.05))
            probe.connect(path)
    except OSError as error:
        raise RuntimeUnavailable(f"The Docker engine cannot be reached at {path}: {error}", reason="engine") from error


def _asked(call: Callable[[], T]) -> T:
    """The answer; EngineRefused if the engine says no, RuntimeUnavailable if it says nothing."""
    try:
        return call()
    except ImageNotFound as error:
        raise EngineRefused(error) from error
    except APIError as error:
        if (error.status_code or 0) < 500 or error.explanation:
            raise EngineRefused(error) from error
        raise RuntimeUnavailable(f"The Docker engine is in trouble: {error}", reason="engine") from error
    except (DockerException, RequestException, OSError) as error:
        raise RuntimeUnavailable(f"The Docker engine cannot be reached: {_short(error)}", reason="engine") from error


def _unless_absent(call: Callable[[], Any]) -> None:
    try:
        _asked(call)
    except EngineRefused as error:
        if not isinstance(error.__cause__, NotFound) and "not connected" not in error.message:
            raise


def _short(error: Exception) -> str:
    """The innermost reason: the client wraps it many times."""
    while error.__context__ is not None and isinstance(error.__context__, Exception):
        error = error.__context__
    return str(error) or type(error).__name__


def _listed(entry: Mapping[str, Any]) -> Container:
    ports = {
        int(port["PrivatePort"]): int(port["PublicPort"])
        for port in entry.get("Ports") or ()
        if port.get("PublicPort") and port.get("IP") == "127.0.0.1"
    }
    name = next(iter(entry.get("Names") or ()), "").removeprefix("/")
    return Container(entry["Id"], name, entry["State"], entry.get("Labels") or {}, ports)


def _inspected(entry: Mapping[str, Any]) -> Container:
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

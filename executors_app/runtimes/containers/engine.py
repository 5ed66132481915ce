"""One Docker engine: every call has a timeout and raises our errors."""

from __future__ import annotations

import logging
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final, TypeVar

import docker
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from requests.exceptions import RequestException

from executors_app.runtimes.containers.connection import DEFAULT_DOCKER_HOST, EngineAddress
from executors_app.runtimes.containers.container import Container, container_from_inspect, container_from_list
from executors_app.runtimes.containers.ssh import SshAdapter, SshConnectionError
from executors_app.wire.errors import LaunchFailed, RuntimeUnavailable

log = logging.getLogger(__name__)

__all__ = ["Container", "Engine", "EngineRefused", "open_engine"]

T = TypeVar("T")

_DEFAULT_TIMEOUT: Final = 60.0
_LOG_TAIL_LINES: Final = 20
"""Lines of a container's log that are shown to users."""


class EngineRefused(LaunchFailed):
    """The Docker engine refused the request."""

    def __init__(self, error: APIError):
        super().__init__(f"The Docker engine refused: {error.explanation or error}")
        self.status = int(error.status_code or 0)
        """HTTP status: 404 not there, 409 in conflict."""


class Engine:
    """Calls to one engine; see ``open_engine``. All block."""

    def __init__(self, client: Any):
        self._client = client

    def ask(self, call: Callable[[Any], T]) -> T:
        """Make any other call of the client; raises EngineRefused for an error, RuntimeUnavailable for no answer."""
        return _call_engine(lambda: call(self._client))

    def find_any(self, call: Callable[[Any], T]) -> T | None:
        """``ask``, but return None for what is not there."""
        try:
            return self.ask(call)
        except EngineRefused as error:
            if error.status == 404:
                return None
            raise

    def follow(self, path: str, params: Mapping[str, str]) -> Iterator[bytes]:
        """Yield the lines of a streaming answer, with the client's timeout between two lines."""
        client = self._client  # called directly, because docker-py's own streaming sets no timeout
        url = client._url(path)  # noqa: SLF001
        answer = _call_engine(lambda: client.get(url, params=params, stream=True, timeout=client.timeout))
        _call_engine(answer.raise_for_status)
        lines: Iterator[bytes] = answer.iter_lines(chunk_size=None)
        return lines

    def identity(self) -> str:
        """Return the id that permanently identifies this engine."""
        return str(_call_engine(self._client.info).get("ID", ""))

    def now(self) -> float:
        """Return the engine's clock in seconds since 1970, which may differ from ours."""
        reported = str(_call_engine(self._client.info).get("SystemTime", ""))
        if reported:
            return datetime.fromisoformat(reported).timestamp()
        return time.time()

    def containers(self, labels: Mapping[str, str]) -> list[Container]:
        """List all containers with these labels, running or not, in one call."""
        wanted = {"label": [f"{name}={value}" for name, value in labels.items()]}
        listed = _call_engine(lambda: self._client.containers(all=True, filters=wanted))
        return [container_from_list(entry) for entry in listed]

    def find(self, name: str) -> Container | None:
        """Inspect the container of that name or id; None if there is none."""
        found = self.find_any(lambda client: client.inspect_container(name))
        if found is not None:
            return container_from_inspect(found)
        return None

    def image_id(self, image: str) -> str:
        """Return the id of a local image; images are never pulled."""
        found = self.find_any(lambda client: client.inspect_image(image))
        if found is None:
            raise RuntimeUnavailable(f"The Docker engine has no image {image!r}. Build it with make image.")
        return str(found["Id"])

    def create(self, name: str, options: Mapping[str, Any], host: Mapping[str, Any]) -> None:
        """Create a container without starting it; raises EngineRefused with status 409 if the name is taken."""
        settings = self._client.create_host_config(**host)
        _call_engine(lambda: self._client.create_container(name=name, host_config=settings, **options))

    def start(self, container_id: str) -> None:
        """Start a container; does nothing if it runs."""
        _call_engine(lambda: self._client.start(container_id))

    def unpause(self, container_id: str) -> None:
        """Resume a paused container."""
        _call_engine(lambda: self._client.unpause(container_id))

    def stop(self, container_id: str, grace: float) -> None:
        """Send TERM, then KILL after ``grace`` seconds; returns once it has ended."""
        _call_engine(lambda: self._client.stop(container_id, timeout=round(grace)))

    def remove(self, container_id: str) -> None:
        """Remove a stopped container; its mounts stay."""
        _ignore_not_found(lambda: self._client.remove_container(container_id))

    def output_tail(self, container_id: str) -> str:
        """Return the end of the container's log."""
        try:
            output = _call_engine(lambda: self._client.logs(container_id, tail=_LOG_TAIL_LINES))
        except EngineRefused:
            return "its log cannot be read."
        return bytes(output).decode("utf-8", "replace").strip()[-2000:] or "its log is empty."

    def network(self, name: str) -> str | None:
        """Return the id of the network of exactly that name."""
        # The engine's filter also matches networks whose name only contains this one.
        found = _call_engine(lambda: self._client.networks(names=[name]))
        return next((str(one["Id"]) for one in found if one["Name"] == name), None)

    def make_network(self, name: str, labels: Mapping[str, str], subnet: str) -> str:
        """Create a bridge network; an empty ``subnet`` uses the engine's pools. Raises EngineRefused if it is taken."""
        if subnet:
            ipam = docker.types.IPAMConfig(pool_configs=[docker.types.IPAMPool(subnet=subnet)])
        else:
            ipam = None
        # Older engines allow several networks of one name, unless told to check.
        made = _call_engine(
            lambda: self._client.create_network(
                name, driver="bridge", ipam=ipam, labels=dict(labels), check_duplicate=True
            )
        )
        return str(made["Id"])

    def connect(self, container_id: str, network_id: str) -> None:
        """Connect a stopped container to the network from its next start on."""
        _call_engine(lambda: self._client.connect_container_to_network(container_id, network_id))

    def drop_network(self, name: str, container_id: str) -> None:
        """Remove a stopped container's network, because addresses are scarce."""
        _ignore_not_found(lambda: self._client.disconnect_container_from_network(container_id, name, force=True))
        _ignore_not_found(lambda: self._client.remove_network(name))


@contextmanager
def open_engine(address: EngineAddress, timeout: float = _DEFAULT_TIMEOUT) -> Iterator[Engine]:
    """Connect to an engine; ``timeout`` is in seconds per call.

    Raises RuntimeUnavailable, whose message for staff names the engine's address.
    """
    address.check_files()
    try:
        if address.is_ours:
            _check_socket(address.parts.path, timeout)
        client = _call_engine(lambda: _client(address, max(timeout, 0.05)))
        try:
            yield Engine(client)
        finally:
            client.close()
    except RuntimeUnavailable as error:
        if error.details.get("reason") == "engine":
            where = f"Its address is {address.url or DEFAULT_DOCKER_HOST}."
            error.details["for_staff"] = f"{error.details.get('for_staff', '')} {where}".strip()
        raise


def _client(address: EngineAddress, timeout: float) -> Any:
    if address.scheme == "ssh":
        return _SshClient(address, timeout)
    tls: Any = False
    if address.tls_cert:
        pair = (address.tls_cert, address.tls_key)
        tls = docker.tls.TLSConfig(client_cert=pair, ca_cert=address.tls_ca, verify=True)
    return _Client(base_url=address.url or None, timeout=timeout, version="auto", tls=tls)


class _Client(docker.APIClient):  # type: ignore[misc]  # docker-py has no types
    """Ignores our environment: no proxy, and no certificates other than the configured ones."""

    trust_env = property(lambda self: False, lambda self, value: None)

    def _retrieve_server_version(self) -> str:
        """Return the engine's API version from a ping: asked for versions, it runs two programs for each connection."""
        try:
            answer = self._get(self._url("/_ping", versioned_api=False))
            self._raise_for_status(answer)
        except APIError as error:
            raise DockerException(f"The engine does not say its API version: {error}") from error
        named = answer.headers.get("Api-Version")
        return str(named or super()._retrieve_server_version())


class _SshClient(_Client):
    """Connects through the ssh program; docker-py's own ssh support needs another, in Python."""

    def __init__(self, address: EngineAddress, timeout: float):
        self._dial = SshAdapter(address, timeout)
        super().__init__(base_url="http+unix:///dialled", timeout=timeout, version="auto")

    def mount(self, prefix: str, adapter: Any) -> None:
        """Replace the adapter of the local socket that the base class expects."""
        if prefix.startswith("http+docker"):
            adapter = self._dial
        super().mount(prefix, adapter)


def _check_socket(path: str, timeout: float) -> None:
    """Fail at once if nothing listens: the client would retry for a while and leak descriptors."""
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(max(timeout, 0.05))
            probe.connect(path)
    except OSError as error:
        log.warning("the Docker engine cannot be reached at %s: %s", path, error)  # members must not see the path
        why = error.strerror or type(error).__name__
        raise RuntimeUnavailable(f"The Docker engine cannot be reached: {why}", reason="engine") from error


def _call_engine(call: Callable[[], T]) -> T:
    """Return the answer; raises EngineRefused for an error answer, RuntimeUnavailable without an answer."""
    try:
        return call()
    except ImageNotFound as error:
        raise EngineRefused(error) from error
    except APIError as error:
        if (error.status_code or 0) < 500 or error.explanation:
            raise EngineRefused(error) from error
        raise RuntimeUnavailable(f"The Docker engine reported an internal error: {error}", reason="engine") from error
    except (DockerException, RequestException, OSError) as error:
        why, for_staff = _explain_error(_root_cause(error))
        message = f"The Docker engine cannot be reached: {why}"
        raise RuntimeUnavailable(message, reason="engine", for_staff=for_staff) from error


def _ignore_not_found(call: Callable[[], Any]) -> None:
    try:
        _call_engine(call)
    except EngineRefused as error:
        if not isinstance(error.__cause__, NotFound) and "not connected" not in error.message:
            raise


def _root_cause(error: BaseException) -> BaseException:
    """Return the innermost error, which the client wraps several times."""
    while not isinstance(error, SshConnectionError) and isinstance(error.__context__, Exception):
        error = error.__context__
    return error


def _explain_error(error: BaseException) -> tuple[str, str]:
    """Return why the engine is unreachable, for everyone and for staff: only staff may see addresses and names."""
    if isinstance(error, SshConnectionError):
        return "the connection over ssh was closed.", f"ssh said: {str(error).rstrip('.')}."
    if isinstance(error, ssl.SSLCertVerificationError):
        return "its certificate is not trusted.", f"{error.verify_message.rstrip('.')}."
    if isinstance(error, OSError) and error.strerror:
        return error.strerror, ""
    if isinstance(error, (TimeoutError, ConnectionError)):
        return str(error), str(error)
    return type(error).__name__, str(error)

"""The settings of Docker executors, and connections to an engine: a local socket, TLS, or one ssh process for each."""

from __future__ import annotations

import hashlib
import ipaddress
import os
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from docker.transport.unixconn import UnixHTTPAdapter, UnixHTTPConnection, UnixHTTPConnectionPool

from executors_app.wire.errors import RuntimeUnavailable

DEFAULT_DOCKER_HOST: Final = "unix:///var/run/docker.sock"


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """The address of one engine; equal addresses are the same engine. Paths are files on this machine."""

    url: str = ""
    """``unix:///path``, ``tcp://host:port``, ``ssh://[user@]host[:port][/path/of/socket]``; empty: the default."""
    tls_ca: str = ""
    """File with the CA certificate that signed the engine's certificate."""
    tls_cert: str = ""
    tls_key: str = ""
    """Our own certificate, as the engine's client."""
    ssh_key: str = ""
    """Private key; empty: the keys that ssh uses by default."""
    ssh_known_hosts: str = ""
    """File of known hosts; empty: ssh's default files. A host that is not in them is always rejected."""

    @property
    def parts(self) -> SplitResult:
        """The parsed URL."""
        return urlsplit(self.url or DEFAULT_DOCKER_HOST)

    @property
    def scheme(self) -> str:
        """``unix``, ``tcp`` or ``ssh``."""
        return self.parts.scheme

    @property
    def is_ours(self) -> bool:
        """Whether it is a socket of this machine."""
        return self.scheme in ("unix", "http+unix")

    def ssh_command(self, timeout: float) -> list[str]:
        """Return the argv of a process whose standard input and output are a connection to the engine."""
        parts = self.parts
        command = ["ssh", "-T", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes"]
        command += ["-o", f"ConnectTimeout={max(1, round(timeout))}"]
        if self.ssh_key:
            command += ["-i", self.ssh_key, "-o", "IdentitiesOnly=yes"]
        if self.ssh_known_hosts:
            command += ["-o", f"UserKnownHostsFile={self.ssh_known_hosts}", "-o", "GlobalKnownHostsFile=/dev/null"]
        if parts.port:
            command += ["-p", str(parts.port)]
        if parts.username:
            command += ["-l", parts.username]
        socket = ["--host", f"unix://{parts.path}"] if parts.path.strip("/") else []
        return [*command, "--", parts.hostname or "", "docker", *socket, "system", "dial-stdio"]

    def check_files(self) -> None:
        """Raise RuntimeUnavailable if a file cannot be read, or a key is readable by other users."""
        for path in filter(None, (self.tls_ca, self.tls_cert, self.tls_key, self.ssh_key, self.ssh_known_hosts)):
            if problem := file_problem(path, private=path in (self.tls_key, self.ssh_key)):
                raise RuntimeUnavailable(problem, reason="engine")


def file_problem(path: str, *, private: bool) -> str:
    """Return why a file cannot be used, as a sentence; empty if it can."""
    try:
        mode = Path(path).stat().st_mode
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}."
    if not os.access(path, os.R_OK) or not Path(path).is_file():
        return f"{path} is not a readable file."
    if private and mode & 0o077:
        return f"{path} is a private key that other users can read. Run chmod 600 on it."
    return ""


_END_TIMEOUT: Final = 1.0
"""Seconds that ssh gets to exit and report its error, once the connection is closed."""
_OUTPUT_LIMIT: Final = 4096
"""Bytes of its output that are read."""
_LINES: Final = 4
"""Last lines of it that are passed on: ssh names the cause there."""


class SshConnectionError(OSError):
    """ssh closed the connection before the engine answered; the text is ssh's own, with hosts and users."""


class SshAdapter(UnixHTTPAdapter):  # type: ignore[misc]  # docker-py has no types
    """A requests adapter that connects to the engine at ``address``."""

    def __init__(self, address: EngineAddress, timeout: float):
        super().__init__("http+unix:///dialled", timeout, pool_connections=1)
        self._address = address

    def get_connection(self, url: Any, proxies: Any = None) -> Any:
        """Return this engine's connection pool."""
        with self.pools.lock:
            pool = self.pools.get(url)
            if pool is None:
                pool = self.pools[url] = _SshPool(url, self._address, self.timeout)
            return pool


class _SshPool(UnixHTTPConnectionPool):  # type: ignore[misc]
    def __init__(self, base_url: str, address: EngineAddress, timeout: float):
        super().__init__(base_url, "", timeout, maxsize=4)
        self._address = address

    def _new_conn(self) -> Any:
        return _SshConnection(self.base_url, self._address, self.timeout)


class _SshConnection(UnixHTTPConnection):  # type: ignore[misc]
    """A connection through one ssh process, which ends with it."""

    def __init__(self, base_url: str, address: EngineAddress, timeout: float):
        super().__init__(base_url, "", timeout)
        self._address = address
        self._process: subprocess.Popen[bytes] | None = None

    def connect(self) -> None:
        """Start ssh; if nothing listens, the connection closes at once."""
        ours, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                self._address.ssh_command(self.timeout),
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.settimeout(self.timeout)
        self.sock = ours

    def getresponse(self) -> Any:
        """Return the engine's answer; raises SshConnectionError if ssh exited instead."""
        # http.client closes the connection on an error, which would end ssh before it has reported the cause.
        # So the process is detached from the connection for the duration of the call.
        process, self._process = self._process, None
        problem: OSError
        try:
            return super().getresponse()
        except OSError as error:
            problem = error
        finally:
            self._process = process
        message = _exit_message(process) if process else ""
        self.close()
        raise SshConnectionError(message) if message else problem

    def close(self) -> None:
        """Close the connection and wait for the process to exit."""
        super().close()
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stderr is not None:
            process.stderr.close()


def _exit_message(process: subprocess.Popen[bytes]) -> str:
    """Return what ssh or the remote program wrote to stderr; empty while it still runs."""
    try:
        process.wait(_END_TIMEOUT)
    except subprocess.TimeoutExpired:
        return ""
    if process.stderr is None:
        return ""
    # A child of ssh may keep the pipe open, so only what is available now is read.
    os.set_blocking(process.stderr.fileno(), False)
    output = (process.stderr.read(_OUTPUT_LIMIT) or b"").decode("utf-8", "replace")
    lines = ["".join(filter(str.isprintable, line)).strip(" @") for line in output.splitlines()]
    return " ".join([line for line in lines if line][-_LINES:])


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

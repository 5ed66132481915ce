"""Connections to a Docker engine: a local socket, TLS, or one ssh process per API connection."""

from __future__ import annotations

import os
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from docker.transport.unixconn import UnixHTTPAdapter, UnixHTTPConnection, UnixHTTPConnectionPool

from executors_app.errors import RuntimeUnavailable

DEFAULT_DOCKER_HOST: Final = "unix:///var/run/docker.sock"


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """The address of one engine; equal addresses are the same engine. Paths are files on this machine."""

    url: str = ""
    """``unix:///path``, ``tcp://host:port``, ``ssh://[user@]host[:port][/path/of/socket]``; empty: the usual socket."""
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

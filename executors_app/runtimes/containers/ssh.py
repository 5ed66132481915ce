"""Connections to a Docker engine through the ssh program, one process for each."""

from __future__ import annotations

import os
import socket
import subprocess
from typing import Any, Final

from docker.transport.unixconn import UnixHTTPAdapter, UnixHTTPConnection, UnixHTTPConnectionPool

from executors_app.runtimes.containers.connection import EngineAddress

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
        message = ""
        if process:
            message = _exit_message(process)
        self.close()
        if message:
            raise SshConnectionError(message)
        raise problem

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

"""A Docker engine behind ssh: each connection of its API is a process that the engine's own program answers.

As Docker's own client does it: ``docker system dial-stdio`` over there joins its standard streams to the engine's
socket.
"""

from __future__ import annotations

import os
import socket
import subprocess
from typing import Any, Final

from docker.transport.unixconn import UnixHTTPAdapter, UnixHTTPConnection, UnixHTTPConnectionPool

from executors_app.containers.address import EngineAddress

_ENDS_WITHIN: Final = 1.0
"""Seconds that ssh has for its own error, once its connection is closed."""
_HEARD: Final = 4096
"""Bytes of it that are read."""
_LINES: Final = 4
"""Of it that are passed on, the last ones: ssh names the cause there."""


class DialError(OSError):
    """The connection was closed before the engine answered; the text is what ssh said, which names hosts and users."""


class DialAdapter(UnixHTTPAdapter):  # type: ignore[misc]  # docker-py has no types
    """For requests: connections to the engine at ``address``."""

    def __init__(self, address: EngineAddress, timeout: float):
        super().__init__("http+unix:///dialled", timeout, pool_connections=1)
        self._address = address

    def get_connection(self, url: Any, proxies: Any = None) -> Any:
        """The pool of this engine."""
        with self.pools.lock:
            pool = self.pools.get(url)
            if pool is None:
                pool = self.pools[url] = _Pool(url, self._address, self.timeout)
            return pool


class _Pool(UnixHTTPConnectionPool):  # type: ignore[misc]
    def __init__(self, base_url: str, address: EngineAddress, timeout: float):
        super().__init__(base_url, "", timeout, maxsize=4)
        self._address = address

    def _new_conn(self) -> Any:
        return _Connection(self.base_url, self._address, self.timeout)


class _Connection(UnixHTTPConnection):  # type: ignore[misc]
    """One process; it ends with the connection."""

    def __init__(self, base_url: str, address: EngineAddress, timeout: float):
        super().__init__(base_url, "", timeout)
        self._address = address
        self._process: subprocess.Popen[bytes] | None = None

    def connect(self) -> None:
        """Start it; that nobody is there shows as a connection that closes at once."""
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
        """The engine's answer; DialError where ssh ended instead."""
        # On its way out of an error http.client closes the connection: ssh would be ended before it has said why.
        process, self._process = self._process, None
        problem: OSError
        try:
            return super().getresponse()
        except OSError as error:
            problem = error
        finally:
            self._process = process
        said = _said_at_its_end(process) if process else ""
        self.close()
        raise DialError(said) if said else problem

    def close(self) -> None:
        """Close it, and wait for the end of its process."""
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


def _said_at_its_end(process: subprocess.Popen[bytes]) -> str:
    """What ssh, or the program over there, has complained of; empty while it still runs."""
    try:
        process.wait(_ENDS_WITHIN)
    except subprocess.TimeoutExpired:
        return ""
    if process.stderr is None:
        return ""
    # A process that ssh has left behind may keep the pipe open: only what is there now is read.
    os.set_blocking(process.stderr.fileno(), False)
    heard = (process.stderr.read(_HEARD) or b"").decode("utf-8", "replace")
    lines = ["".join(filter(str.isprintable, line)).strip(" @") for line in heard.splitlines()]
    return " ".join([line for line in lines if line][-_LINES:])

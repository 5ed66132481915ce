"""A Docker engine behind ssh: each connection of its API is a process that the engine's own program answers.

As Docker's own client does it: ``docker system dial-stdio`` over there joins its standard streams to the engine's
socket.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
from typing import Any

from docker.transport.unixconn import UnixHTTPAdapter, UnixHTTPConnection, UnixHTTPConnectionPool

from executors_app.containers.address import EngineAddress


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
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.settimeout(self.timeout)
        self.sock = ours

    def close(self) -> None:
        """Close it, and wait for the end of its process."""
        super().close()
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
            return
        process.kill()
        process.wait()

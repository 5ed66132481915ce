"""Connects to an agentctl of this machine, and proves who listens before anybody sends it a token.

A Unix socket lies where nobody else can make one; its listener must be of our user, and the recorded process where that
can be seen. A loopback port, at which agentctls of earlier releases listen, may be bound by anybody once its process
is dead: there the recorded process itself must hold the socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from executors_app.agentctl import identity, unix_socket
from executors_app.agentctl.identity import ProcessIdentity
from executors_app.errors import AgentctlForeign, AgentctlUnreachable

_TABLES: Final = {socket.AF_INET: Path("/proc/net/tcp"), socket.AF_INET6: Path("/proc/net/tcp6")}
_WORD: Final = struct.Struct("=I")
_SOCKET: Final = re.compile(r"socket:\[(\d+)\]")
_LINE: Final = 150
_LISTENS: Final = "0A"
"""``TCP_LISTEN`` in the tables."""


@dataclass(frozen=True, slots=True)
class Listener:
    """Where an agentctl of this machine listens, and as which process."""

    url: str
    """``unix:/path``, or ``http://127.0.0.1:port``."""
    process: ProcessIdentity | None
    """As it was recorded when it was launched; None: not yet."""

    async def connect(self) -> socket.socket:
        """A connection, non-blocking, to nobody but our agentctl.

        Raises AgentctlForeign where another one listens, AgentctlUnreachable where a successor does or the URL is
        none, and OSError.
        """
        try:
            path = unix_socket.path_of(self.url)
            connection = await (self._over_loopback() if path is None else unix_socket.connect(path))
        except ValueError as error:
            raise AgentctlUnreachable("The address of agentctl is no URL.", reason="bad_url") from error
        try:
            if path is None:
                self._prove_port(connection)
            else:
                self._prove_peer(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    async def _over_loopback(self) -> socket.socket:
        parts = urlsplit(self.url)
        family = numeric(parts.hostname or "")
        if parts.scheme != "http" or family is None or parts.port is None:
            raise ValueError(f"{self.url!r} is no address of this machine")
        connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK, socket.IPPROTO_TCP)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().sock_connect(connection, (parts.hostname, parts.port))
        except BaseException:
            connection.close()
            raise
        return connection

    def _prove_peer(self, connection: socket.socket) -> None:
        peer = unix_socket.peer_of(connection)
        if peer.uid != os.geteuid():
            raise AgentctlForeign("Another user listens where agentctl was.", reason="other_user")
        if self.process is None or not identity.is_here(self.process):
            return  # a pid means nothing to us
        if peer.pid != self.process.pid or not identity.is_alive(self.process):
            # Of our user and in our directory, so it is a later agentctl of the same execution.
            raise AgentctlUnreachable("The agentctl that was recorded has ended.", reason="replaced")

    def _prove_port(self, connection: socket.socket) -> None:
        """Look who listens after the connection was made, not before.

        An agentctl binds its port once and holds it to its end. If it holds it now, nobody else can have accepted
        this connection; a look before it would leave time for it to die and for another to bind.
        """
        host, port = connection.getpeername()[:2]
        inode = _listening_inode(connection.family, host, port)
        held = inode is not None and self.process is not None and inode in _sockets_of(self.process)
        if not held:
            raise AgentctlForeign("What listens at agentctl's port is not its process.", reason="other_listener")


def host_header_of(listener: Listener) -> str:
    """What its agentctl knows itself by; empty where the URL is none."""
    if listener.url.startswith(unix_socket.SCHEME):
        return "localhost"
    with contextlib.suppress(ValueError):
        return urlsplit(listener.url).netloc
    return ""


def numeric(host: str) -> socket.AddressFamily | None:
    """The family of an address in figures; None for a name."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError, ValueError):
            socket.inet_pton(family, host)
            return family
    return None


def _sockets_of(process: ProcessIdentity) -> set[str]:
    """The inodes of its sockets; none where it is dead or may not be looked into."""
    found: set[str] = set()
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{process.pid}/fd"):
            with contextlib.suppress(OSError):
                if match := _SOCKET.fullmatch(str(Path(entry.path).readlink())):
                    found.add(match[1])
    # Asked last: then all of these were its own, and not of a process that got its pid meanwhile.
    return found if identity.is_alive(process) else set()


def _listening_inode(family: int, host: str, port: int) -> str | None:
    """The inode of the socket that listens at an address, which the kernel prefers to one that listens at all."""
    words = [word for (word,) in _WORD.iter_unpack(socket.inet_pton(family, host))]
    wanted = f"{''.join(f'{word:08X}' for word in words)}:{port:04X}"
    # The kernel fills whatever is asked for, if it takes a walk over all connections: so a line at a time is.
    with _TABLES[socket.AddressFamily(family)].open("rb", buffering=_LINE) as table:
        next(table)  # the heading
        for line in table:
            fields = line.decode("ascii").split()
            if fields[3] != _LISTENS:
                break  # those that listen come first
            if fields[1] == wanted:
                return fields[9]
    return None

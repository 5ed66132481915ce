"""Sockets of agentctls on this machine: Unix sockets with paths of any length, and proof of who listens.

A token is sent only to a proven listener. ``LocalConnector`` lets aiohttp do the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

import aiohttp
import orjson

from executors_app.agentctl.process import identity
from executors_app.agentctl.process.identity import ProcessIdentity
from executors_app.errors import AgentctlForeign, AgentctlUnreachable

SCHEME: Final = "unix:"
_CREDENTIALS: Final = struct.Struct("3i")
_ADDRESS_BYTES: Final = 107
"""Maximum length of a Unix socket's address."""
_FULL_POLL: Final = 0.02
"""Seconds between attempts to connect while the backlog is full: the kernel does not queue them."""
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True)
class PeerCredentials:
    """The peer process as the kernel reports it; for a listener, as it was when it began to listen."""

    pid: int
    """0 if it is in a pid namespace that is not visible here."""
    uid: int


def unix_url(path: Path) -> str:
    """Return the ``unix:`` URL of an absolute path."""
    return SCHEME + quote(str(path))


def unix_path(url: str) -> Path | None:
    """Return the path of a ``unix:`` URL; None for another URL. Raises ValueError if it is not absolute."""
    if not url.startswith(SCHEME):
        return None
    path = Path(unquote(url.removeprefix(SCHEME)))
    if not path.is_absolute() or not path.name or "\0" in str(path):
        raise ValueError(f"{url!r} does not name an absolute path")
    return path


def listen_unix(path: Path, backlog: int) -> socket.socket:
    """Listen at ``path`` with mode 0600, replacing the socket of a dead process.

    Raises OSError if someone listens there, another kind of file is there, or others can enter the directory.
    """
    with _directory_of(path) as directory:
        if os.stat(directory).st_mode & _OTHERS:  # noqa: PTH116 - a descriptor
            raise PermissionError(errno.EPERM, "others can enter the socket's directory: chmod 700", str(path.parent))
        _refuse_taken(path, directory)
        temporary = f".{path.name}.{os.getpid()}"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=directory)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(_below(directory, temporary))
            os.chmod(temporary, 0o600, dir_fd=directory)
            listener.listen(backlog)
            # Renamed only once it listens: clients that find the name can connect, and a stale socket is replaced
            # atomically.
            os.rename(temporary, path.name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            listener.close()
            raise
    listener.setblocking(False)
    return listener


async def connect_unix(path: Path) -> socket.socket:
    """Return a non-blocking connection; raises ConnectionRefusedError if nobody listens, or another OSError.

    Waits while the backlog is full, so the caller sets a timeout.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        with _address_of(path) as address:
            while not _connected(connection, address):  # noqa: ASYNC110 - nothing signals room in a backlog
                await asyncio.sleep(_FULL_POLL)
    except (FileNotFoundError, NotADirectoryError) as error:
        connection.close()
        raise ConnectionRefusedError(errno.ECONNREFUSED, "there is no such socket", str(path)) from error
    except BaseException:
        connection.close()
        raise
    return connection


def peer_credentials(connection: socket.socket) -> PeerCredentials:
    """Return the peer of a Unix socket."""
    pid, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return PeerCredentials(pid, uid)


def _connected(connection: socket.socket, address: str) -> bool:
    try:
        connection.connect(address)
    except BlockingIOError:
        return False
    return True


def _refuse_taken(path: Path, directory: int) -> None:
    try:
        found = os.stat(path.name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise FileExistsError(errno.EEXIST, "the path exists and is not a socket", str(path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(_below(directory, path.name))
        except ConnectionRefusedError:
            return  # a socket of a dead process
        except BlockingIOError:
            pass  # the backlog is full, so someone listens
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), str(path))


@contextmanager
def _directory_of(path: Path) -> Iterator[int]:
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield directory
    finally:
        os.close(directory)


@contextmanager
def _address_of(path: Path) -> Iterator[str]:
    """Yield a path of the socket that is short enough for an address."""
    if len(os.fsencode(path)) <= _ADDRESS_BYTES:
        yield str(path)
        return
    with _directory_of(path) as directory:
        yield _below(directory, path.name)


def _below(directory: int, name: str) -> str:
    """Return a short path of a name in an open directory."""
    return f"/proc/self/fd/{directory}/{name}"


_TABLES: Final = {socket.AF_INET: Path("/proc/net/tcp"), socket.AF_INET6: Path("/proc/net/tcp6")}
_WORD: Final = struct.Struct("=I")
_SOCKET: Final = re.compile(r"socket:\[(\d+)\]")
_LINE: Final = 150
_LISTEN_STATE: Final = "0A"
"""``TCP_LISTEN`` in the tables."""


@dataclass(frozen=True, slots=True)
class AgentctlListener:
    """The address of an agentctl on this machine, and its process."""

    url: str
    """``unix:/path``, or ``http://127.0.0.1:port``."""
    process: ProcessIdentity | None
    """As recorded at its launch; None if not recorded yet."""

    async def connect(self) -> socket.socket:
        """Return a non-blocking connection to our agentctl, and to no one else.

        Raises AgentctlForeign if another process listens, AgentctlUnreachable if a successor does or the URL is
        invalid, and OSError.
        """
        try:
            path = unix_path(self.url)
            connection = await (self._over_loopback() if path is None else connect_unix(path))
        except ValueError as error:
            raise AgentctlUnreachable("agentctl's address is not a URL.", reason="bad_url") from error
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
        family = address_family(parts.hostname or "")
        if parts.scheme != "http" or family is None or parts.port is None:
            raise ValueError(f"{self.url!r} is not an address of this machine")
        connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK, socket.IPPROTO_TCP)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().sock_connect(connection, (parts.hostname, parts.port))
        except BaseException:
            connection.close()
            raise
        return connection

    def _prove_peer(self, connection: socket.socket) -> None:
        peer = peer_credentials(connection)
        if peer.uid != os.geteuid():
            raise AgentctlForeign("Another user listens where agentctl was.", reason="other_user")
        if self.process is None or not identity.is_on_this_host(self.process):
            return  # of another boot or namespace: its pid has no meaning here
        if peer.pid != self.process.pid or not identity.is_alive(self.process):
            # It runs as our user, in our directory: a later agentctl of the same execution.
            raise AgentctlUnreachable("The agentctl that was recorded has ended.", reason="replaced")

    def _prove_port(self, connection: socket.socket) -> None:
        """Check who listens after connecting, not before.

        An agentctl binds its port once and holds it until it ends. If it holds the port now, no one else can have
        accepted this connection. After a check before connecting, it could die and another process could bind the port.
        """
        host, port = connection.getpeername()[:2]
        inode = _listening_inode(connection.family, host, port)
        held = inode is not None and self.process is not None and inode in _sockets_of(self.process)
        if not held:
            raise AgentctlForeign("The process on agentctl's port is not agentctl.", reason="other_listener")


def host_header(listener: AgentctlListener) -> str:
    """Return the Host header that agentctl accepts; empty if the URL is invalid."""
    if listener.url.startswith(SCHEME):
        return "localhost"
    with contextlib.suppress(ValueError):
        return urlsplit(listener.url).netloc
    return ""


def address_family(host: str) -> socket.AddressFamily | None:
    """Return the family of a numeric address; None for a host name."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError, ValueError):
            socket.inet_pton(family, host)
            return family
    return None


def _sockets_of(process: ProcessIdentity) -> set[str]:
    """Return the inodes of a process's sockets; empty if it is dead or not accessible."""
    found: set[str] = set()
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{process.pid}/fd"):
            with contextlib.suppress(OSError):
                if match := _SOCKET.fullmatch(str(Path(entry.path).readlink())):
                    found.add(match[1])
    # Checked last: if it is alive now, these sockets were its own and not those of a process that reused its pid.
    return found if identity.is_alive(process) else set()


def _listening_inode(family: int, host: str, port: int) -> str | None:
    """Return the inode of the socket that listens at exactly this address; the kernel prefers it to a wildcard."""
    words = [word for (word,) in _WORD.iter_unpack(socket.inet_pton(family, host))]
    wanted = f"{''.join(f'{word:08X}' for word in words)}:{port:04X}"
    # Read one line at a time: the kernel walks all connections to fill a larger buffer.
    with _TABLES[socket.AddressFamily(family)].open("rb", buffering=_LINE) as table:
        next(table)  # the heading
        for line in table:
            fields = line.decode("ascii").split()
            if fields[3] != _LISTEN_STATE:
                break  # listening sockets come first
            if fields[1] == wanted:
                return fields[9]
    return None


_SUFFIX: Final = ".agentctl.invalid"


def connector_url(listener: AgentctlListener) -> str:
    """Return the URL that makes a ``LocalConnector`` connect to a listener."""
    process = listener.process.to_json() if listener.process else None
    return f"http://{orjson.dumps([listener.url, process]).hex()}{_SUFFIX}"


class LocalConnector(aiohttp.TCPConnector):
    """A TCP connector that connects to a proven agentctl for the URLs of ``connector_url``."""

    async def _create_connection(self, req: Any, traces: Any, timeout: Any) -> Any:
        listener = _listener_in(req.url.raw_host)
        if listener is None:
            return await super()._create_connection(req, traces, timeout)
        try:
            async with asyncio.timeout(timeout.sock_connect):
                connection = await listener.connect()
        except TimeoutError:
            raise
        except OSError as error:  # as aiohttp's own connectors do, so that callers recognise a refused connection
            raise aiohttp.ClientConnectorError(req.connection_key, error) from error
        try:
            _, protocol = await self._loop.create_connection(self._factory, sock=connection)
        except BaseException:
            connection.close()
            raise
        return protocol


def _listener_in(host: str | None) -> AgentctlListener | None:
    if not host or not host.endswith(_SUFFIX):
        return None
    url, process = orjson.loads(bytes.fromhex(host.removesuffix(_SUFFIX)))
    return AgentctlListener(url, ProcessIdentity.from_json(process) if process else None)

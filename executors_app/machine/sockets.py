"""Unix sockets with paths of any length, and the processes at their other ends."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

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


def address_family(host: str) -> socket.AddressFamily | None:
    """Return the family of a numeric address; None for a host name."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError, ValueError):
            socket.inet_pton(family, host)
            return family
    return None

"""Unix sockets by paths of any length, and who is at their other end.

A socket's address holds 108 bytes, and data directories may be deeper: so the directory is opened, and the socket named
below ``/proc/self/fd``, which is short whatever the path is.
"""

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
from urllib.parse import quote, unquote

SCHEME: Final = "unix:"
_CREDENTIALS: Final = struct.Struct("3i")
_FULL_POLL: Final = 0.02
"""Seconds between attempts at a socket whose backlog is full: the kernel does not queue them."""
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True)
class Peer:
    """The process at the other end, by the kernel's word: of a listener as it was when it began to listen."""

    pid: int
    """0 where it is in a pid namespace that cannot be seen from here."""
    uid: int


def url_of(path: Path) -> str:
    """The ``unix:`` URL of an absolute path."""
    return SCHEME + quote(str(path))


def path_of(url: str) -> Path | None:
    """The path that a ``unix:`` URL names; None for another URL, ValueError for what can be no absolute path."""
    if not url.startswith(SCHEME):
        return None
    path = Path(unquote(url.removeprefix(SCHEME)))
    if not path.is_absolute() or not path.name or "\0" in str(path):
        raise ValueError(f"{url!r} names no absolute path")
    return path


def listen(path: Path, backlog: int) -> socket.socket:
    """A listening socket at ``path``, 0600, in place of one that a dead process has left.

    Raises OSError where somebody listens there, something else is there, or others can enter its directory.
    """
    with _directory_of(path) as directory:
        if os.stat(directory).st_mode & _OTHERS:  # noqa: PTH116 - a descriptor
            raise PermissionError(errno.EPERM, "others can enter the socket's directory: chmod 700", str(path.parent))
        _refuse_taken(path, directory)
        draft = f".{path.name}.{os.getpid()}"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft, dir_fd=directory)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(_below(directory, draft))
            os.chmod(draft, 0o600, dir_fd=directory)
            listener.listen(backlog)
            # Renamed once it listens: whoever finds the name is answered, and a stale one is replaced in one step.
            os.rename(draft, path.name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            listener.close()
            raise
    listener.setblocking(False)
    return listener


async def connect(path: Path) -> socket.socket:
    """A connection, non-blocking; ConnectionRefusedError where nobody listens, or another OSError.

    Waits as long as the backlog is full: the caller sets a timeout.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        with _directory_of(path) as directory:
            while not _connected(connection, _below(directory, path.name)):  # noqa: ASYNC110 - nobody tells of room
                await asyncio.sleep(_FULL_POLL)
    except (FileNotFoundError, NotADirectoryError) as error:
        connection.close()
        raise ConnectionRefusedError(errno.ECONNREFUSED, "there is no such socket", str(path)) from error
    except BaseException:
        connection.close()
        raise
    return connection


def peer_of(connection: socket.socket) -> Peer:
    """Who is at the other end of a Unix socket."""
    pid, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return Peer(pid, uid)


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
        raise FileExistsError(errno.EEXIST, "there is something else than a socket", str(path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(_below(directory, path.name))
        except ConnectionRefusedError:
            return  # its process is dead
        except BlockingIOError:
            pass  # so many wait that somebody must be there
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), str(path))


@contextmanager
def _directory_of(path: Path) -> Iterator[int]:
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield directory
    finally:
        os.close(directory)


def _below(directory: int, name: str) -> str:
    return f"/proc/self/fd/{directory}/{name}"

"""Fork copies of a prepared process on request, each with its own identity.

The server has one thread and no event loop, and has imported all that its forks need. Whoever holds the other end of
its socket pair is its only client; the server ends with that client. A fork is a child of init (or of the nearest
subreaper) and leads its own session, so it neither notices the end of the server nor becomes its zombie.

A fork would look like its server in ``/proc``, where we recognise processes by their command line and environment
(``execution_processes``). So before its pid is reported, it overwrites the memory that the kernel shows there, which
was reserved when the server was executed, and checks the result. From then on it is recognised exactly like a process
that was executed with these arguments and this environment, also by an earlier release.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import select
import socket
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, NoReturn

from executors_app.machine.process import spawning

_MAX_ORDER: Final = 128 * 1024
"""Bytes of a request; a client that needs more gets OSError."""
_MAX_FILES: Final = 16
_PATIENCE: Final = 60.0
"""Seconds for an answer, which include the imports of a server that has just started."""

ROOM_FOR_ARGUMENTS: Final = "-" * 6 * 1024
"""The last argument of a server: its forks may have that many more bytes of command line."""
ROOM_FOR_VARIABLES: Final = {"ROOM": "-" * 2 * 1024}
"""A variable for a server: its forks may have that many more bytes of environment."""


class Program(NamedTuple):
    """What each fork does."""

    first: Callable[[ProcIdentity, Sequence[str]], None]
    """Called with its identity, which it does not show yet, and its command line; may fork again."""
    run: Callable[[Sequence[str], Sequence[int]], int]
    """Called with its command line and the given files; returns its exit status."""


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return the client's and the server's end of a connection."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def request_fork(
    connection: socket.socket,
    argv: Sequence[str],
    environment: Mapping[str, str],
    *,
    given: Sequence[int] = (),
    held: Sequence[int] = (),
    kill_server: Callable[[], object] = lambda: None,
) -> int:
    """Return the pid of a new fork that looks as if executed with ``argv`` and ``environment``. Blocks.

    The fork keeps the files ``given``. It has the files ``held``, for instance a lock, open until it can be recognised,
    even if we die. Raises OSError if nothing was started; ``kill_server`` is called if there is no answer in time.
    """
    answer, reply_pipe = os.pipe()
    try:
        try:
            order = marshal.dumps((list(argv), dict(environment), len(given)))
            socket.send_fds(connection, [order], [reply_pipe, *held, *given])
        finally:
            os.close(reply_pipe)
        waiting = select.poll()  # not select: a supervisor may have thousands of descriptors
        waiting.register(answer, select.POLLIN)
        if not waiting.poll(_PATIENCE * 1000):
            kill_server()
        # The pipe ends when the fork can be recognised, or when none will come: the request dies with its server.
        data = b"".join(iter(lambda: os.read(answer, 64), b""))
    finally:
        os.close(answer)
    if not data:
        raise ConnectionResetError("the process that forks has ended")
    return int(data)


def has_ended(connection: socket.socket) -> bool:
    """Whether the server has closed its end, which it does before a request without an answer ends."""
    waiting = select.poll()
    waiting.register(connection, 0)  # the end is always reported
    return bool(waiting.poll(0))


def serve_forks(
    connection: socket.socket, argv: Sequence[str], environment: Mapping[str, str], program: Program
) -> None:
    """Fork for each request, until the client is gone; meanwhile this process shows the given identity."""
    spawning.replace_environment(environment)  # first, so that C refers to copies of what is overwritten
    identity = ProcIdentity()
    identity.show(argv, environment)
    while True:
        order, files, _, _ = socket.recv_fds(connection, _MAX_ORDER, _MAX_FILES, socket.MSG_CMSG_CLOEXEC)
        if not order:
            return
        try:
            if (middle := os.fork()) == 0:
                _fork_again(connection, identity, order, files, program)
            os.waitpid(middle, 0)
        except OSError:  # the client sees the end of the pipe
            traceback.print_exc()
        finally:
            for file in files:
                os.close(file)


def _fork_again(
    connection: socket.socket, identity: ProcIdentity, order: bytes, files: Sequence[int], program: Program
) -> NoReturn:
    """Run in the first fork, and in the second, whose parent has ended."""
    status = 1
    try:
        if os.fork():
            status = 0
        else:
            status = _run_fork(connection, identity, order, files, program)
    except SystemExit as ended:
        status = 1
        if isinstance(ended.code, int):
            status = ended.code
    except BaseException:  # noqa: BLE001  (nothing may continue in the server's code)
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)


def _run_fork(
    connection: socket.socket, identity: ProcIdentity, order: bytes, files: Sequence[int], program: Program
) -> int:
    connection.close()
    argv, environment, count = marshal.loads(order)  # noqa: S302  (from our only client)
    os.setsid()
    program.first(identity, argv)
    identity.show(argv, environment)
    spawning.replace_environment(environment)
    sys.argv = list(argv)
    given = files[len(files) - count :]
    with suppress(BrokenPipeError):  # whoever starts this execution next finds us
        os.write(files[0], b"%d" % os.getpid())
    for file in files[: len(files) - count]:
        os.close(file)
    return program.run(argv, given)


class ProcIdentity:
    """The memory of this process that ``/proc/PID/cmdline`` and ``/proc/PID/environ`` show, and that its forks inherit.

    Raises OSError if the kernel does not report where it is.
    """

    def __init__(self) -> None:
        fields = _read("stat").rpartition(b")")[2].split()
        self._arguments, self._variables = _Area(*map(int, fields[45:47])), _Area(*map(int, fields[47:49]))

    def show(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        """Replace command line and environment; raises OSError if there is no room, or if the kernel shows others."""
        words = b"".join(os.fsencode(word) + b"\0" for word in argv)
        variables = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environment.items())
        self._arguments.write(words)
        self._variables.write(variables)
        for name, wanted in (("cmdline", words), ("environ", variables)):
            if _read(name).rstrip(b"\0") != wanted.rstrip(b"\0"):
                raise OSError(f"/proc/self/{name} shows something else")


def _read(name: str) -> bytes:
    """Read a file of ``/proc/self`` without pathlib, of which a fork would get a copy."""
    file = os.open(f"/proc/self/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return b"".join(iter(lambda: os.read(file, _MAX_ORDER), b""))
    finally:
        os.close(file)


class _Area:
    """A range of our own memory that holds strings, and zeros after them."""

    def __init__(self, start: int, end: int):
        if not 0 < start < end:
            raise OSError("the kernel does not report where the command line is")
        self._start, self._size = start, end - start
        self._used = self._size

    def write(self, data: bytes) -> None:
        """Replace the content. Touches no page that stays empty, because it would be copied for each fork."""
        if len(data) >= self._size:  # the last byte stays zero: otherwise the kernel takes the rest for one string
            raise OSError("there is no room for this command line or environment")
        ctypes.memmove(self._start, data, len(data))
        if self._used > len(data):
            ctypes.memset(self._start + len(data), 0, self._used - len(data))
        self._used = len(data)

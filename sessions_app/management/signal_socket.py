"""Wait for signals and for child processes at the same time."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Final

_CHUNK: Final = 1024
_sockets: Final = set[socket.socket]()
"""Both ends of this process's signal socket."""


@contextmanager
def signal_socket() -> Iterator[socket.socket]:
    """Yield a socket that becomes readable with every signal that this process handles; main thread only.

    A handler alone would not end a wait: Python resumes the interrupted call.
    """
    reader, writer = socket.socketpair()
    _sockets.update((reader, writer))
    with reader, writer:
        reader.setblocking(False)
        writer.setblocking(False)
        before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            yield reader
        finally:
            signal.set_wakeup_fd(before)
            _sockets.difference_update((reader, writer))


def leave_signal_socket() -> None:
    """In a forked child: report its signals to its parent no more, and close its copies of the sockets."""
    signal.set_wakeup_fd(-1)
    while _sockets:
        _sockets.pop().close()


def wait_for_signal_or_exit(signals: socket.socket, processes: Iterable[BaseProcess], seconds: float) -> None:
    """Wait until a signal arrives or one of the processes has ended, at most ``seconds``."""
    wait([signals, *(process.sentinel for process in processes)], max(seconds, 0.0))
    with suppress(BlockingIOError):
        while signals.recv(_CHUNK):
            pass

"""Keep child processes running: restart them with back-off, and end them with their parent.

Children are forked, not started as programs: they begin with the modules that the parent has imported. A restart is
therefore fast, and all of them share the memory of the code.
"""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from multiprocessing.process import BaseProcess
from pathlib import Path
from socket import socket, socketpair
from typing import Final

from executors_app.backoff import backoff_delay

_CHUNK: Final = 1024
_sockets: Final = set[socket]()
"""Both ends of this process's signal socket."""


@contextmanager
def signal_socket() -> Iterator[socket]:
    """Yield a socket that becomes readable with every signal that this process handles; main thread only.

    A handler alone would not end a wait: Python resumes the interrupted call.
    """
    reader, writer = socketpair()
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


def wait_for_signal_or_exit(signals: socket, processes: Iterable[BaseProcess], seconds: float) -> None:
    """Wait until a signal arrives or one of the processes has ended, at most ``seconds``."""
    wait([signals, *(process.sentinel for process in processes)], max(seconds, 0.0))
    with suppress(BlockingIOError):
        while signals.recv(_CHUNK):
            pass


log = logging.getLogger(__name__)

MAX_RESTART_DELAY: Final = 30.0
"""Maximum delay in seconds between the end of a child and its restart."""
CHECK_EVERY: Final = 1.0
"""Maximum seconds between two checks by ``supervise_children``."""
STABLE_AFTER: Final = 60.0
"""A child that ran for this many seconds counts as stable: its back-off starts over."""
_PR_SET_PDEATHSIG: Final = 1
_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_FORKING: Final = multiprocessing.get_context("fork")


@dataclass
class ChildProcess:
    """A child to keep running, in its own process group."""

    name: str
    main: Callable[[], object]
    """What it runs; the child ends when this returns, with status 0."""
    closes: Sequence[socket] = ()
    """The parent's sockets that the child does not use: an open copy would keep their port busy."""
    orphan_signal: signal.Signals = signal.SIGTERM
    """The signal that the kernel sends it when the parent is killed."""
    process: ForkProcess | None = None
    started_at: float = 0.0
    starts_at: float = 0.0
    quick_deaths: int = 0

    def start(self, now: float) -> None:
        """Start the process; ``now`` is monotonic time in seconds. The parent must have one thread, as forks need."""
        self.started_at = now
        request_death_signal = make_parent_death_hook(os.getpid(), self.orphan_signal)
        # Blocked until the child has its own handlers: an earlier signal would run the parent's handlers and be lost.
        unmasked = signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
        try:
            self.process = _FORKING.Process(target=self._run, args=(request_death_signal, unmasked), name=self.name)
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, unmasked)
        # Set here and in the child, so that the group exists before a signal is sent to it, whichever runs first.
        with suppress(ProcessLookupError, PermissionError):
            os.setpgid(_pid(self.process), 0)

    def _run(self, request_death_signal: Callable[[], None] | None, unmasked: Iterable[int]) -> None:
        os.setpgid(0, 0)
        if request_death_signal is not None:
            request_death_signal()
        leave_signal_socket()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, unmasked)
        for unused in self.closes:
            unused.close()
        with suppress(OSError):  # only a name for ps and top
            Path("/proc/self/comm").write_text(f"kandev-{self.name}")
        self.main()

    def restart_if_ended(self, now: float) -> None:
        """Start the process if its delay has elapsed; schedule a restart if it has ended."""
        if self.process is None:
            if now >= self.starts_at:
                self.start(now)
        elif self.process.exitcode is not None:
            self._schedule_restart(self.process, now)

    def kill(self) -> bool:
        """Kill the process and its children as a crash would; it restarts at once. Return False if it did not run."""
        if self.process is None or self.process.exitcode is not None:
            return False
        _signal_group(self.process, signal.SIGKILL)
        self.process.join()
        self.process, self.starts_at = None, 0.0
        return True

    def _schedule_restart(self, process: ForkProcess, now: float) -> None:
        _signal_group(process, signal.SIGKILL)  # children that it left behind
        if now - self.started_at >= STABLE_AFTER:
            self.quick_deaths = 0
        else:
            self.quick_deaths = self.quick_deaths + 1
        delay = backoff_delay(self.quick_deaths + 1, 0.25, MAX_RESTART_DELAY)
        log.warning("%s ended with status %s; restarting in %.1f s", self.name, process.exitcode, delay)
        self.process, self.starts_at = None, now + delay


def supervise_children(
    children: Sequence[ChildProcess],
    stopped: Callable[[], bool],
    grace: float = 20.0,
    before_each_check: Callable[[], None] = lambda: None,
) -> None:
    """Keep ``children`` running until ``stopped()``, then end them: SIGTERM, and SIGKILL after ``grace`` seconds.

    Everything is checked after each signal, at the end of a child, and every ``CHECK_EVERY`` seconds.
    """
    try:
        with signal_socket() as signals:
            while not stopped():
                before_each_check()
                now = time.monotonic()
                for child in children:
                    child.restart_if_ended(now)
                next_start = min((child.starts_at for child in children if child.process is None), default=now + 60)
                running = [child.process for child in children if child.process is not None]
                wait_for_signal_or_exit(signals, running, min(CHECK_EVERY, next_start - now))
    finally:
        _terminate(children, grace)


def _terminate(children: Sequence[ChildProcess], grace: float) -> None:
    running = [child.process for child in children if child.process and child.process.exitcode is None]
    for process in running:
        process.terminate()
    deadline = time.monotonic() + grace
    for process in running:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.exitcode is None:
            log.warning("process %d did not stop in time; killing it", _pid(process))
        # The whole group, also after an orderly end: the process may have left children behind.
        _signal_group(process, signal.SIGKILL)
        process.join()


def _signal_group(process: ForkProcess, signum: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(_pid(process), signum)


def _pid(process: ForkProcess) -> int:
    if not process.pid:  # killpg(0) would signal our own group
        raise ValueError(f"{process.name} has not been started")
    return process.pid


def make_parent_death_hook(parent: int, signum: signal.Signals) -> Callable[[], None] | None:
    """Return a function with which a new child asks for ``signum`` when its parent ends, however that happens.

    None on systems without ``prctl``.
    """
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)

    def request_death_signal() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, int(signum))
        # The parent may have ended before the call, and no signal would ever come.
        if os.getppid() != parent:
            os._exit(1)

    return request_death_signal

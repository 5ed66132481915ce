"""Keep child processes running: restart them with back-off, and end them with their parent."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from executors_app.backoff import backoff_delay

log = logging.getLogger(__name__)

MAX_RESTART_DELAY: Final = 30.0
"""Maximum delay in seconds between the end of a child and its restart."""
STABLE_AFTER: Final = 60.0
"""A child that ran for this many seconds counts as stable: its back-off starts over."""
_PR_SET_PDEATHSIG: Final = 1


@dataclass
class ChildProcess:
    """A program to keep running, in its own process group."""

    name: str
    argv: Sequence[str]
    cwd: Path
    kept_descriptors: Sequence[int] = ()
    orphan_signal: signal.Signals = signal.SIGTERM
    """The signal that the kernel sends it when the parent is killed."""
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    starts_at: float = 0.0
    quick_deaths: int = 0

    def start(self, now: float) -> None:
        """Start the process; ``now`` is monotonic time in seconds."""
        self.started_at = now
        self.process = subprocess.Popen(
            self.argv,
            cwd=self.cwd,
            stdin=subprocess.DEVNULL,
            pass_fds=self.kept_descriptors,
            process_group=0,
            preexec_fn=make_parent_death_hook(os.getpid(), self.orphan_signal),  # noqa: PLW1509 - the parent has one thread
        )

    def restart_if_ended(self, now: float) -> None:
        """Start the process if its delay has elapsed; schedule a restart if it has ended."""
        if self.process is None:
            if now >= self.starts_at:
                self.start(now)
        elif self.process.poll() is not None:
            self._schedule_restart(self.process, now)

    def kill(self) -> bool:
        """Kill the process and its children as a crash would; it restarts at once. Return False if it did not run."""
        if self.process is None or self.process.poll() is not None:
            return False
        _signal_group(self.process, signal.SIGKILL)
        self.process.wait()
        self.process, self.starts_at = None, 0.0
        return True

    def _schedule_restart(self, process: subprocess.Popen[bytes], now: float) -> None:
        _signal_group(process, signal.SIGKILL)  # children that it left behind
        self.quick_deaths = 0 if now - self.started_at >= STABLE_AFTER else self.quick_deaths + 1
        delay = backoff_delay(self.quick_deaths + 1, 0.25, MAX_RESTART_DELAY)
        log.warning("%s ended with status %s; restarting in %.1f s", self.name, process.returncode, delay)
        self.process, self.starts_at = None, now + delay


def supervise_children(
    children: Sequence[ChildProcess],
    stopped: Callable[[], bool],
    grace: float = 20.0,
    before_each_check: Callable[[], None] = lambda: None,
) -> None:
    """Keep ``children`` running until ``stopped()``, then end them: SIGTERM, and SIGKILL after ``grace`` seconds."""
    try:
        while not stopped():
            before_each_check()
            for child in children:
                child.restart_if_ended(time.monotonic())
            time.sleep(0.1)
    finally:
        _terminate(children, grace)


def _terminate(children: Sequence[ChildProcess], grace: float) -> None:
    running = [child.process for child in children if child.process and child.process.poll() is None]
    for process in running:
        process.terminate()
    deadline = time.monotonic() + grace
    for process in running:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            log.warning("process %d did not stop in time; killing it", process.pid)
        # The whole group, also after an orderly end: the process may have left children behind.
        _signal_group(process, signal.SIGKILL)
        process.wait()


def _signal_group(process: subprocess.Popen[bytes], signum: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signum)


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

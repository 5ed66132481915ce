"""Child processes that are kept running: started again with a back-off, and ended with their keeper."""

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
"""Seconds at most between a death and the next start."""
STABLE_AFTER: Final = 60.0
"""A child that lived so many seconds starts again without a longer pause than the first time."""
_PR_SET_PDEATHSIG: Final = 1


@dataclass
class ChildProcess:
    """One program to keep running, in a process group of its own."""

    name: str
    argv: Sequence[str]
    cwd: Path
    kept_descriptors: Sequence[int] = ()
    orphan_signal: signal.Signals = signal.SIGTERM
    """What it gets from the kernel when its keeper is killed."""
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    starts_at: float = 0.0
    quick_deaths: int = 0

    def start(self, now: float) -> None:
        """Start it; ``now`` is monotonic seconds."""
        self.started_at = now
        self.process = subprocess.Popen(
            self.argv,
            cwd=self.cwd,
            stdin=subprocess.DEVNULL,
            pass_fds=self.kept_descriptors,
            process_group=0,
            preexec_fn=make_parent_death_hook(os.getpid(), self.orphan_signal),  # noqa: PLW1509 - the keeper has one thread
        )

    def look_after(self, now: float) -> None:
        """Start it if it is due, note its death if it died."""
        if self.process is None:
            if now >= self.starts_at:
                self.start(now)
        elif self.process.poll() is not None:
            self._died(self.process, now)

    def kill(self) -> bool:
        """End it with all that it started, as a crash would; the next look starts it again. False if it did not run."""
        if self.process is None or self.process.poll() is not None:
            return False
        _signal_group(self.process, signal.SIGKILL)
        self.process.wait()
        self.process, self.starts_at = None, 0.0
        return True

    def _died(self, process: subprocess.Popen[bytes], now: float) -> None:
        _signal_group(process, signal.SIGKILL)  # what it started and left behind
        self.quick_deaths = 0 if now - self.started_at >= STABLE_AFTER else self.quick_deaths + 1
        pause = backoff_delay(self.quick_deaths + 1, 0.25, MAX_RESTART_DELAY)
        log.warning("%s ended with status %s; it starts again in %.1f s", self.name, process.returncode, pause)
        self.process, self.starts_at = None, now + pause


def supervise_children(
    children: Sequence[ChildProcess],
    stopped: Callable[[], bool],
    grace: float = 20.0,
    between: Callable[[], None] = lambda: None,
) -> None:
    """Keep ``children`` running until ``stopped()``, then end them: TERM, and KILL after ``grace`` seconds.

    ``between`` is called before each look at them.
    """
    try:
        while not stopped():
            between()
            for child in children:
                child.look_after(time.monotonic())
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
            log.warning("process %d does not end, so it is killed", process.pid)
        _signal_group(process, signal.SIGKILL)
        process.wait()


def _signal_group(process: subprocess.Popen[bytes], signum: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signum)


def make_parent_death_hook(keeper: int, signum: signal.Signals) -> Callable[[], None] | None:
    """What a new child does first: ask the kernel for ``signum`` when its keeper is gone, however that ended."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)

    def ask() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, int(signum))
        if os.getppid() != keeper:
            os._exit(1)

    return ask

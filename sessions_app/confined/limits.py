"""The limits of one request, and how a child process takes them on."""

from __future__ import annotations

import math
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

CPU_SIGNALS: Final = frozenset({signal.SIGPROF, signal.SIGXCPU})
"""Signals that prove that a process has used its processor time."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The budget of one request.

    ``seconds`` is elapsed time. It should be several times ``cpu_seconds``, so that a busy machine refuses no text.
    """

    cpu_seconds: float
    seconds: float
    memory: int
    """Bytes of address space, of which an idle child already uses about 100 MB."""


class ItemTooExpensive(BaseException):
    """An item of a batch has used its share of processor time. No ``except Exception`` of a library may catch it."""


def limit_process(limits: Limits) -> None:
    """Give up every right that is not needed, and have the system kill this process when its time is over."""
    # The timer counts fractions of a second. Its signal tells the server the cause; the limit is there in case that
    # the timer fails, and its soft limit comes first for the same reason.
    whole_seconds = math.ceil(limits.cpu_seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (whole_seconds + 1, whole_seconds + 2))
    resource.setrlimit(resource.RLIMIT_AS, (limits.memory, limits.memory))
    # Descriptors that are open stay usable, such as the connection; no new one can be opened.
    for kind in (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE, resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC):
        resource.setrlimit(kind, (0, 0))
    for number in (signal.SIGALRM, *CPU_SIGNALS):
        signal.signal(number, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, limits.cpu_seconds)
    signal.setitimer(signal.ITIMER_REAL, limits.seconds)


@contextmanager
def limit_item(cpu_seconds: float) -> Iterator[None]:
    """Raise ItemTooExpensive in this thread once the block has used ``cpu_seconds`` of processor time.

    A native function that does not return to Python is interrupted by the limits of the process only.
    """
    signal.signal(signal.SIGVTALRM, _raise_too_expensive)
    # It repeats, in case that the first exception is raised where Python ignores it, such as in a destructor.
    signal.setitimer(signal.ITIMER_VIRTUAL, cpu_seconds, cpu_seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _raise_too_expensive(number: int, frame: object) -> None:
    raise ItemTooExpensive

"""Poll for a condition with a deadline, instead of sleeping for a fixed time."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeVar

T = TypeVar("T")

PATIENCE: Final = 60.0
"""Timeout in seconds of whatever must succeed: long enough for a process on a busy machine."""
_POLL: Final = 0.02
_LONGEST_POLL: Final = 0.5


class WaitTimeout(AssertionError):
    """The condition did not hold before the deadline; the message has its description and its last value."""


def eventually(predicate: Callable[[], T], timeout: float = PATIENCE, describe: str = "") -> T:
    """Poll until ``predicate`` returns a true value, and return it; raise WaitTimeout after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        started = time.monotonic()
        value = predicate()
        if value:
            return value
        if time.monotonic() > deadline:
            raise _timeout_error(predicate, timeout, describe, value)
        time.sleep(_pause_after(started))


async def eventually_async(predicate: Callable[[], Any], timeout: float = PATIENCE, describe: str = "") -> Any:
    """Do the same as `eventually` in a coroutine; ``predicate`` may be an ordinary or an async function."""
    deadline = time.monotonic() + timeout
    while True:
        started = time.monotonic()
        result = predicate()
        value = await result if inspect.isawaitable(result) else result
        if value:
            return value
        if time.monotonic() > deadline:
            raise _timeout_error(predicate, timeout, describe, value)
        await asyncio.sleep(_pause_after(started))


def settled(read: Callable[[], T]) -> T:
    """Read until three readings in a row are equal, and return the last one."""
    readings: deque[T] = deque(maxlen=3)

    def agree() -> bool:
        readings.append(read())
        return len(readings) == 3 and all(one == readings[0] for one in readings)

    eventually(agree, describe=f"three readings are equal: {read.__qualname__}")
    return readings[-1]


def pass_time(seconds: float) -> None:
    """Let the clock of the running event loop jump ahead: what is limited to less than ``seconds`` times out.

    So a test gives a limit that nothing reaches on a busy machine, and lets it pass once its subject is where it hangs.
    """
    loop = asyncio.get_running_loop()
    clock = loop.time
    loop.time = lambda: clock() + seconds  # type: ignore[method-assign]


def _pause_after(started: float) -> float:
    """Return the seconds until the next poll: frequent polls of a busy server would delay the condition itself."""
    return min(max(_POLL, 3 * (time.monotonic() - started)), _LONGEST_POLL)


def _timeout_error(predicate: object, timeout: float, describe: str, value: object) -> WaitTimeout:
    condition = describe or getattr(predicate, "__qualname__", repr(predicate))
    return WaitTimeout(f"not within {timeout} s: {condition} (last value: {value!r})")

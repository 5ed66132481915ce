"""Waiting for something to become true, with a deadline; never for time to pass."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_POLL = 0.02


class NeverHappened(AssertionError):
    """The deadline passed; the message says what was waited for and what was seen last."""


def eventually(predicate: Callable[[], T], timeout: float = 10, describe: str = "") -> T:
    """Poll until ``predicate`` answers something true, and return that; NeverHappened after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        seen = predicate()
        if seen:
            return seen
        if time.monotonic() > deadline:
            raise _too_late(predicate, timeout, describe, seen)
        time.sleep(_POLL)


async def eventually_async(predicate: Callable[[], Any], timeout: float = 10, describe: str = "") -> Any:
    """`eventually` for coroutines; ``predicate`` may be an ordinary or an async function."""
    deadline = time.monotonic() + timeout
    while True:
        answer = predicate()
        seen = await answer if inspect.isawaitable(answer) else answer
        if seen:
            return seen
        if time.monotonic() > deadline:
            raise _too_late(predicate, timeout, describe, seen)
        await asyncio.sleep(_POLL)


def _too_late(predicate: object, timeout: float, describe: str, seen: object) -> NeverHappened:
    what = describe or getattr(predicate, "__qualname__", repr(predicate))
    return NeverHappened(f"not within {timeout} s: {what} (last seen: {seen!r})")

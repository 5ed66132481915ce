"""Threads for calls that may wait for long, of which no owner takes so many that others get none."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

_T = TypeVar("_T")


class FairThreads:
    """A number of threads. An owner of calls never has more of them than are free for others.

    So one owner has at most half of them, the next one a quarter, and so on; the other calls wait, and those of the
    owner with the fewest threads are next.
    """

    def __init__(self, threads: int, name: str):
        self._size = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._lock = threading.Lock()
        self._running: Counter[str] = Counter()
        self._waiting: dict[str, deque[tuple[Future[Any], Callable[[], Any]]]] = {}

    async def call(self, owner: str, function: Callable[[], _T]) -> _T:
        """Call a function in a thread, with the context of the caller, and return its result."""
        return await asyncio.wrap_future(self.submit(owner, partial(contextvars.copy_context().run, function)))

    def submit(self, owner: str, function: Callable[[], _T]) -> Future[_T]:
        """Call a function in a thread, as soon as its owner may have one."""
        future: Future[_T] = Future()
        with self._lock:
            self._waiting.setdefault(owner, deque()).append((future, function))
            self._start_waiting()
        return future

    def _start_waiting(self) -> None:
        """Start the calls that may start; the caller holds the lock."""
        while self._waiting:
            owner = min(self._waiting, key=self._running.__getitem__)  # of several, the one that has waited longest
            if self._running[owner] >= self._size - self._running.total():
                return
            calls = self._waiting.pop(owner)
            future, function = calls.popleft()
            if calls:
                self._waiting[owner] = calls  # at the end again
            self._running[owner] += 1
            self._pool.submit(self._run, owner, future, function)

    def _run(self, owner: str, future: Future[Any], function: Callable[[], Any]) -> None:
        try:
            if future.set_running_or_notify_cancel():
                _complete(future, function)
        finally:
            with self._lock:
                self._running[owner] -= 1
                if not self._running[owner]:
                    del self._running[owner]
                self._start_waiting()


def _complete(future: Future[Any], function: Callable[[], Any]) -> None:
    try:
        result = function()
    except BaseException as error:  # noqa: BLE001 - whoever waits for the future gets it
        future.set_exception(error)
    else:
        future.set_result(result)

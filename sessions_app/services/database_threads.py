"""Run database functions on dedicated threads: one for each supervisor job, a pool for sockets, and in batches."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, Generic, ParamSpec, Protocol, TypeVar

from django.db import Error, connections

from sessions_app.domain import actor_context
from sessions_app.models.locking import wait_briefly_for_locks

log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")


class DatabaseThread:
    """One long-lived thread that runs database functions in the order they come."""

    def __init__(self, name: str):
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name, initializer=wait_briefly_for_locks)

    async def __call__(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``function`` on the thread and return its result."""
        call = partial(function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(
            self._executor, _run_with_fresh_connection, call, actor_context.current_context()
        )

    async def run_at_shutdown(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Run a clean-up ``function``; if the database is unavailable, log that and continue to shut down.

        The effect is then that of a killed process: leases expire without a release.
        """
        try:
            await self(function, *args, **kwargs)
        except Error as error:
            log.warning("the database is unavailable at shutdown: %s", error)

    def close(self) -> None:
        """Finish the current function, then close the thread's connection."""
        # On that thread, because Django's connections belong to the thread that opened them.
        self._executor.submit(connections.close_all)
        self._executor.shutdown(wait=True)


def _run_with_fresh_connection(call: Callable[[], T], known: actor_context.ActorContext) -> T:
    """Replace a broken connection, because the thread outlives a database restart; keep the actor context."""
    for connection in connections.all(initialized_only=True):
        if connection.errors_occurred and not connection.is_usable():
            connection.close()
    with actor_context.acting_exactly_as(known):
        return call()


CallParams = ParamSpec("CallParams")
Returned = TypeVar("Returned")

_threads: Final = ThreadPoolExecutor(max_workers=4, thread_name_prefix="sockets")


async def run_in_database(
    function: Callable[CallParams, Returned], *args: CallParams.args, **kwargs: CallParams.kwargs
) -> Returned:
    """Run ``function`` on a thread of the pool, with a connection that is closed afterwards."""
    call = partial(function, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_threads, _run_and_close, call)


def _run_and_close(call: Callable[[], Returned]) -> Returned:
    try:
        return call()
    finally:
        connections.close_all()


MAX_BATCH: Final = 32
"""Requests of one call: about 10 ms, so that other work on the thread is not delayed."""


class HasSessionId(Protocol):
    """A request about one session."""

    @property
    def session_id(self) -> uuid.UUID:
        """Id of the session."""


Request = TypeVar("Request", bound=HasSessionId)
Result = TypeVar("Result")


class BatchExecutor(Generic[Request, Result]):
    """Call ``function`` for several requests at once on a database thread; later requests join its next call.

    ``function`` gets the requests sorted by session, so that two calls cannot deadlock on each other's rows, and
    returns a result or an error for each. If it raises, each request is tried alone. A session has one request at a
    time.
    """

    def __init__(self, thread: DatabaseThread, function: Callable[[Sequence[Request]], Sequence[Result | Exception]]):
        self._thread, self._function = thread, function
        self._waiting: deque[tuple[Request, asyncio.Future[Result]]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, request: Request) -> Result:
        """Return the result of this request, or raise its error."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, future))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="batches")
        return await future

    async def _run(self) -> None:
        actor_context.begin_context()  # it works for all callers, not only for the first
        while self._waiting:
            taken = [self._waiting.popleft() for _ in range(min(MAX_BATCH, len(self._waiting)))]
            batch = [entry for entry in taken if not entry[1].done()]  # the other callers were cancelled
            if batch:
                await self._execute(sorted(batch, key=lambda entry: entry[0].session_id))

    async def _execute(self, batch: Sequence[tuple[Request, asyncio.Future[Result]]]) -> None:
        results: Sequence[Result | Exception]
        try:
            results = await self._thread(self._function, [request for request, _ in batch])
        except Exception as error:  # noqa: BLE001  (the caller of the request handles it)
            # The call was rolled back as a whole. Tried alone, only the request at fault fails.
            if len(batch) > 1:
                for entry in batch:
                    await self._execute([entry])
                return
            results = [error]
        for (_, future), result in zip(batch, results, strict=True):
            if future.done():
                continue  # its caller was cancelled meanwhile
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)

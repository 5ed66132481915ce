"""Run database functions on dedicated threads.

One per supervisor job, a pool for sockets, and batches that share one transaction.
"""

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
        """Run ``function`` there and give what it returns or raises."""
        call = partial(function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(
            self._executor, _run_with_fresh_connection, call, actor_context.current_context()
        )

    async def at_the_end(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Run ``function``, which leaves all in order; where the database is away that is told, and the end goes on.

        What is left so counts as left by a process that was killed: leases run out.
        """
        try:
            await self(function, *args, **kwargs)
        except Error as error:
            log.warning("the database cannot be told of the end: %s", error)

    def close(self) -> None:
        """Finish what is under way, then close the thread's connection."""
        self._executor.submit(connections.close_all)
        self._executor.shutdown(wait=True)


def _run_with_fresh_connection(call: Callable[[], T], known: actor_context.ActorContext) -> T:
    """A restarted database must not poison the thread for good; who acts is known there, too."""
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
    """Run ``function`` on one of the threads, with a connection that is closed when it ends."""
    call = partial(function, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_threads, _alone, call)


def _alone(call: Callable[[], Returned]) -> Returned:
    try:
        return call()
    finally:
        connections.close_all()


MAX_BATCH: Final = 32
"""In one go: what takes some 10 ms, so that others get their turn."""


class HasSessionId(Protocol):
    """Whatever is wanted for one session."""

    @property
    def session_id(self) -> uuid.UUID:
        """Whose rows it is about."""


Request = TypeVar("Request", bound=HasSessionId)
Result = TypeVar("Result")


class BatchExecutor(Generic[Request, Result]):
    """``function`` for several wishes at once, on a database thread: who comes while it works is in its next call.

    It gets them in the order of their sessions, so that two such calls cannot wait for each other's rows, and gives
    what came of each in that order, a result or an error. Where it raises, each is tried alone. A session has one
    wish at a time.
    """

    def __init__(self, thread: DatabaseThread, function: Callable[[Sequence[Request]], Sequence[Result | Exception]]):
        self._thread, self._function = thread, function
        self._waiting: deque[tuple[Request, asyncio.Future[Result]]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, wish: Request) -> Result:
        """What came of this one; raises its error."""
        told: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((wish, told))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="together")
        return await told

    async def _run(self) -> None:
        actor_context.begin_context()  # it works for all of them, whoever came first
        while self._waiting:
            some = [self._waiting.popleft() for _ in range(min(MAX_BATCH, len(self._waiting)))]
            wanted = [one for one in some if not one[1].done()]  # the others have gone
            if wanted:
                await self._do(sorted(wanted, key=lambda one: one[0].session_id))

    async def _do(self, some: Sequence[tuple[Request, asyncio.Future[Result]]]) -> None:
        results: Sequence[Result | Exception]
        try:
            results = await self._thread(self._function, [wish for wish, _ in some])
        except Exception as error:  # noqa: BLE001  (it is the wish's to say)
            if len(some) > 1:
                for one in some:
                    await self._do([one])
                return
            results = [error]
        for (_, told), result in zip(some, results, strict=True):
            if told.done():
                continue  # gone meanwhile
            if isinstance(result, Exception):
                told.set_exception(result)
            else:
                told.set_result(result)

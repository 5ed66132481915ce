"""What many tasks want of the database at the same moment is done in one go, and nobody's failure is another's."""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Generic, Protocol, TypeVar

from sessions_app.domain import acting
from sessions_app.supervisor.threads import DatabaseThread

MOST: Final = 32
"""In one go: what takes some 10 ms, so that others get their turn."""


class OfASession(Protocol):
    """Whatever is wanted for one session."""

    @property
    def session_id(self) -> uuid.UUID:
        """Whose rows it is about."""


W = TypeVar("W", bound=OfASession)
R = TypeVar("R")


class Together(Generic[W, R]):
    """``function`` for several wishes at once, on a database thread: who comes while it works is in its next call.

    It gets them in the order of their sessions, so that two such calls cannot wait for each other's rows, and gives
    what came of each in that order, a result or an error. Where it raises, each is tried alone. A session has one
    wish at a time.
    """

    def __init__(self, thread: DatabaseThread, function: Callable[[Sequence[W]], Sequence[R | Exception]]):
        self._thread, self._function = thread, function
        self._waiting: deque[tuple[W, asyncio.Future[R]]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, wish: W) -> R:
        """What came of this one; raises its error."""
        told: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((wish, told))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="together")
        return await told

    async def _run(self) -> None:
        acting.begin()  # it works for all of them, whoever came first
        while self._waiting:
            some = [self._waiting.popleft() for _ in range(min(MOST, len(self._waiting)))]
            wanted = [one for one in some if not one[1].done()]  # the others have gone
            if wanted:
                await self._do(sorted(wanted, key=lambda one: one[0].session_id))

    async def _do(self, some: Sequence[tuple[W, asyncio.Future[R]]]) -> None:
        results: Sequence[R | Exception]
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

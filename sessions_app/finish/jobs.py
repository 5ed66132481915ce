"""The job of merges and pushes: carry out what is requested."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Final
from weakref import WeakValueDictionary

from django.db import connection

from executors_app.backoff import Backoff
from sessions_app.finish import execution
from sessions_app.finish.execution import Place
from sessions_app.kernel import actor_context
from sessions_app.supervisor.job import Job, Supervisor

log = logging.getLogger(__name__)
CHECK_EVERY: Final = 1.0
"""Minimum seconds between two checks; without an open intent, it waits for a change."""
MAX_CARRIED_OUT: Final = 6
"""Intents that are carried out at once."""
MAX_OF_HOST: Final = 2
"""The same of pushes to one server, so that a server that never answers delays only its own."""


class Slots:
    """How many intents are carried out at once: of all, of one server, and of one repository."""

    def __init__(self) -> None:
        self._all = asyncio.Semaphore(MAX_CARRIED_OUT)
        # Whoever waits for one keeps it; one that nobody waits for is forgotten.
        self._limited: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def take(self, place: Place) -> AsyncIterator[None]:
        """Wait for a slot and hold it. The widest limit is taken last, so whoever waits for a place takes no slot."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._limit(place.target, 1))
            if place.host:
                await stack.enter_async_context(self._limit(place.host, MAX_OF_HOST))
            await stack.enter_async_context(self._all)
            yield

    def _limit(self, name: str, count: int) -> asyncio.Semaphore:
        limit = self._limited.get(name)
        if limit is None:
            limit = asyncio.Semaphore(count)
            self._limited[name] = limit
        return limit


class FinishJob(Job):
    """Carries out merges and pushes, each in a thread of its own: git and remotes take as long as they take."""

    name = "finish"

    def __init__(self, supervisor: Supervisor) -> None:
        super().__init__(supervisor)
        self._running: dict[uuid.UUID, asyncio.Task[None]] = {}
        self._slots = Slots()

    async def run_step(self) -> None:
        """Begin with what is new, and wait until something may be."""
        changes = self.registry.changes.count
        for intent_id, place in (await self.registry.database(execution.open_intents)).items():
            if intent_id not in self._running:
                task = asyncio.create_task(self._carry_out(intent_id, place), name=f"finish {intent_id}")
                self._running[intent_id] = task
        await asyncio.sleep(CHECK_EVERY)
        await self.registry.changes.rest(changes)

    async def stop(self) -> None:
        """Leave the rest to the next supervisor, which looks how far each one is."""
        running = list(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _carry_out(self, intent_id: uuid.UUID, place: Place) -> None:
        actor_context.begin_context(cause="finish")
        backoff = Backoff()
        try:
            while not await self._try(intent_id, place):  # noqa: ASYNC110  (waits between attempts)
                await asyncio.sleep(backoff.record_failure())
        finally:
            del self._running[intent_id]

    async def _try(self, intent_id: uuid.UUID, place: Place) -> bool:
        """Try once; return False if it is to be tried again."""
        async with self._slots.take(place):
            try:
                return await _in_thread(intent_id)
            except Exception:
                log.exception("the merge or push %s could not be carried out", intent_id)
                return False


async def _in_thread(intent_id: uuid.UUID) -> bool:
    """Carry an intent out in a thread for which the end of the process does not wait.

    git and a remote may take minutes. Whoever continues looks first, so ending in the middle does no harm.
    """
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    result: asyncio.Future[bool] = loop.create_future()

    def run() -> None:
        try:
            done = partial(_set_result, result, context.run(_carry_out, intent_id))
        except Exception as error:  # noqa: BLE001  (raised again where the result is awaited)
            done = partial(_set_error, result, error)
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(done)

    threading.Thread(target=run, name=f"finish {intent_id}", daemon=True).start()
    return await result


def _set_result(result: asyncio.Future[bool], value: bool) -> None:
    if not result.done():
        result.set_result(value)


def _set_error(result: asyncio.Future[bool], error: Exception) -> None:
    if not result.done():
        result.set_exception(error)


def _carry_out(intent_id: uuid.UUID) -> bool:
    try:
        return execution.carry_out(intent_id)
    finally:
        connection.close()  # the thread is not ours to keep one open in

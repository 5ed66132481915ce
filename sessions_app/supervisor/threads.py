"""Database work of the supervisor: on threads of its own, one connection each, never on the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from django.db import Error, connections

from sessions_app.domain import acting
from sessions_app.models.locking import be_impatient

log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")


class DatabaseThread:
    """One long-lived thread that runs database functions in the order they come."""

    def __init__(self, name: str):
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name, initializer=be_impatient)

    async def __call__(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``function`` there and give what it returns or raises."""
        call = partial(function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._executor, _fresh, call, acting.known())

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


def _fresh(call: Callable[[], T], known: acting.Known) -> T:
    """A restarted database must not poison the thread for good; who acts is known there, too."""
    for connection in connections.all(initialized_only=True):
        if connection.errors_occurred and not connection.is_usable():
            connection.close()
    with acting.exactly(known):
        return call()

"""A closer look at those that gave no good answer, while the others are still being waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from executors_app.agentctl.places import local_processes
from executors_app.agentctl.places.local_processes import Processes
from executors_app.domain import Observation
from executors_app.errors import ExecutorError

GATHERING: Final = 0.05
"""Seconds for which those that fail one after the other are gathered: each group is one pass over the machine."""

Look = Callable[[str, Processes, ExecutorError], Awaitable[Observation]]


class CloserLook:
    """Looks at each that is added, as long as its task group lasts; ``seen`` has them all behind it.

    The processes of each are looked for after its answer has failed, never before.
    """

    def __init__(self, group: asyncio.TaskGroup, look: Look, concurrency: int):
        self.seen: dict[str, Observation] = {}
        """By execution id."""
        self._group, self._look, self._bound = group, look, asyncio.Semaphore(concurrency)
        self._waiting: list[tuple[str, ExecutorError]] = []
        self._task: asyncio.Task[Any] | None = None
        self._all_in = asyncio.Event()

    def add(self, execution_id: str, error: ExecutorError) -> None:
        """It gave no good answer."""
        self._waiting.append((execution_id, error))
        if self._task is None or self._task.done():
            self._task = self._group.create_task(self._look_at_groups())

    def no_more(self) -> None:
        """Everybody has answered or failed: nothing is gathered any longer."""
        self._all_in.set()

    async def _look_at_groups(self) -> None:
        while self._waiting:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._all_in.wait(), GATHERING)
            group, self._waiting = self._waiting, []
            found = await asyncio.to_thread(local_processes.look_around)
            await asyncio.gather(*(self._look_at(one, found.get(one) or Processes(), error) for one, error in group))

    async def _look_at(self, execution_id: str, processes: Processes, error: ExecutorError) -> None:
        async with self._bound:
            self.seen[execution_id] = await self._look(execution_id, processes, error)

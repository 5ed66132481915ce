"""Which sessions have something to do, and the two lanes of each: starts and prompts in order, the rest overtakes."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable

from django.db.models import Q
from django.utils import timezone

from sessions_app.domain.states import PromptState
from sessions_app.models import OVERTAKING, Intent, IntentKind, Prompt
from sessions_app.supervisor import commands, start
from sessions_app.supervisor.core import Core
from sessions_app.supervisor.prompts import send_next

log = logging.getLogger(__name__)


def sessions_with_orders() -> set[uuid.UUID]:
    """Sessions with an open order or a prompt that is not at work yet; two queries, whatever the history."""
    due = Q(session__next_restart_at=None) | Q(session__next_restart_at__lte=timezone.now()) | ~Q(kind=IntentKind.START)
    intents = Intent.objects.filter(due, done_at=None).values_list("session_id", flat=True)
    waiting = Prompt.objects.filter(state__in=[PromptState.QUEUED, PromptState.SENDING])
    return set(intents) | set(waiting.values_list("session_id", flat=True))


def next_overtaking(session_id: uuid.UUID) -> Intent | None:
    """The oldest open order that overtakes, stops and closes first."""
    rows = list(
        Intent.objects.filter(session_id=session_id, done_at=None, kind__in=OVERTAKING).select_related("session")
    )
    return min(rows, key=lambda row: (OVERTAKING.index(IntentKind(row.kind)), row.created_at), default=None)


def next_start(session_id: uuid.UUID) -> uuid.UUID | None:
    """The session's open start order, unless it waits for its time or for the end of what it had before."""
    rows = Intent.objects.filter(session_id=session_id, done_at=None)
    if rows.filter(kind__in=(IntentKind.STOP, IntentKind.CLOSE)).exists():
        return None
    due = rows.filter(kind=IntentKind.START).filter(
        Q(session__next_restart_at=None) | Q(session__next_restart_at__lte=timezone.now())
    )
    return due.values_list("id", flat=True).first()


class Lane:
    """Runs one step after another until there is nothing to do; ``poke`` makes it look again."""

    def __init__(self, step: Callable[[], Awaitable[bool]]):
        self._step = step
        self._poked = False
        self.task: asyncio.Task[None] | None = None

    def poke(self) -> None:
        """There may be something to do."""
        self._poked = True
        if self.task is None or self.task.done():
            self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while self._poked:
            self._poked = False
            try:
                while await self._step():
                    pass
            except Exception:  # a lane that has died would leave its session without anybody
                log.exception("a lane of orders failed")


class Orders:
    """The lanes of all sessions of one supervisor."""

    def __init__(self, core: Core):
        self.core = core
        self._lanes: dict[uuid.UUID, tuple[Lane, Lane]] = {}

    def poke(self, session_id: uuid.UUID) -> None:
        """Look at a session's orders."""
        if session_id not in self._lanes:
            self._lanes[session_id] = (
                Lane(lambda: self._in_order(session_id)),
                Lane(lambda: self._overtaking(session_id)),
            )
        for lane in self._lanes[session_id]:
            lane.poke()

    async def look(self) -> None:
        """Poke every session that has something to do."""
        for session_id in await self.core.database(sessions_with_orders):
            self.poke(session_id)

    async def settle(self) -> None:
        """Wait until every lane is at rest."""
        while running := [task for task in self._tasks() if not task.done()]:
            await asyncio.wait(running)

    async def close(self) -> None:
        """End the lanes; what they were doing is in the rows."""
        for task in (tasks := self._tasks()):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [lane.task for lanes in self._lanes.values() for lane in lanes if lane.task is not None]

    async def _in_order(self, session_id: uuid.UUID) -> bool:
        intent_id = await self.core.database(next_start, session_id)
        if intent_id is None:
            return await send_next(self.core, session_id)
        await start.carry_out(self.core, session_id, intent_id)
        return await self.core.database(_is_done, intent_id)

    async def _overtaking(self, session_id: uuid.UUID) -> bool:
        intent = await self.core.database(next_overtaking, session_id)
        return intent is not None and await commands.carry_out(self.core, intent)


def _is_done(intent_id: uuid.UUID) -> bool:
    return Intent.objects.filter(id=intent_id, done_at__isnull=False).exists()

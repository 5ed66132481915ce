"""Which sessions have something to do, and the two lanes of each: starts and prompts in order, the rest overtakes."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from django.db.models import Q

from executors_app.models import ExecutorRunning
from executors_app.prepared import EARLY, LATE, Prepared
from sessions_app.domain import acting
from sessions_app.domain.states import PromptState
from sessions_app.models import OVERTAKING, Intent, IntentKind, Prompt
from sessions_app.services.intents import due, due_between, now_and_beyond
from sessions_app.supervisor import commands, leases
from sessions_app.supervisor.core import Core
from sessions_app.supervisor.outage import Outage, is_outage
from sessions_app.supervisor.pace import Pace
from sessions_app.supervisor.start import starting
from sessions_app.supervisor.turns.prompts import send_next

log = logging.getLogger(__name__)

_PROMPTS = Prepared(
    lambda _: (
        Prompt.objects.filter(state__in=[PromptState.QUEUED, PromptState.SENDING]).order_by().values_list("session_id")
    )
)
_ORDERS = Prepared(
    lambda now, beyond: Intent.objects.filter(
        due_between(now, beyond) | ~Q(kind=IntentKind.START), done_at=None
    ).values_list("session_id", "id", "kind"),
    EARLY,
    LATE,
)


@dataclass(slots=True)
class Waiting:
    """What waits of one session."""

    overtakes: bool = False
    """An order of it overtakes."""
    ends: bool = False
    start: uuid.UUID | None = None
    """The start order that comes next, as ``next_start`` says."""

    def take_in(self, intent_id: uuid.UUID, kind: str) -> None:
        """An open order of it, the oldest first."""
        self.overtakes = self.overtakes or kind in OVERTAKING
        self.ends = self.ends or kind in (IntentKind.STOP, IntentKind.CLOSE)
        if kind == IntentKind.START and self.start is None:
            self.start = intent_id
        if self.ends:
            self.start = None


def sessions_with_orders(me: str) -> dict[uuid.UUID, Waiting]:
    """Sessions with an open order or a prompt that is not at work yet, and that no other supervisor holds.

    A handful of queries, whatever the history.
    """
    found = {session_id: Waiting() for (session_id,) in _PROMPTS.values()}
    for session_id, intent_id, kind in _ORDERS.values(*now_and_beyond()):
        found.setdefault(session_id, Waiting()).take_in(intent_id, kind)
    owners = ExecutorRunning.objects.filter(session_id__in=found).exclude(owner__in=("", me))
    held = leases.held_by_others(owners.values_list("session_id", "owner", "lease_expires_at"), me)
    return {session_id: one for session_id, one in found.items() if session_id not in held}


def next_overtaking(session_id: uuid.UUID) -> Intent | None:
    """The oldest open order that overtakes, stops and closes first."""
    rows = list(
        Intent.objects.filter(session_id=session_id, done_at=None, kind__in=OVERTAKING).select_related("session")
    )
    return min(rows, key=lambda row: (OVERTAKING.index(IntentKind(row.kind)), row.created_at), default=None)


def next_start(session_id: uuid.UUID) -> uuid.UUID | None:
    """The session's open start order, unless it waits for its time or for the end of what it had before."""
    ends = Q(kind__in=(IntentKind.STOP, IntentKind.CLOSE))
    rows = Intent.objects.filter(ends | due() & Q(kind=IntentKind.START), session_id=session_id, done_at=None)
    found = list(rows.values_list("id", "kind"))
    return None if any(kind != IntentKind.START for _, kind in found) else next((key for key, _ in found), None)


class Lane:
    """Runs one step after another until there is nothing to do; ``poke`` makes it look again.

    While the database is away it waits with everybody else for ``outage`` to be over.
    """

    def __init__(self, step: Callable[[], Awaitable[bool]], outage: Outage | None = None):
        self._step, self._outage = step, outage
        self._poked = False
        self._pace = Pace()
        self.task: asyncio.Task[None] | None = None

    @property
    def is_free(self) -> bool:
        """A poke makes it look at once."""
        return not self._pace.rests and (self.task is None or self.task.done())

    def poke(self) -> None:
        """There may be something to do."""
        self._poked = True
        if self.is_free:
            self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        acting.begin(cause="order")
        while self._poked:
            self._poked = False
            try:
                while await self._step():
                    pass
                self._pace.succeeded()
            except Exception as error:  # a lane that has died would leave its session without anybody
                if self._outage is not None and is_outage(error):
                    await self._outage.wait(error)
                    self._poked = True
                    continue
                log.exception("a lane of orders failed")
                asyncio.get_running_loop().call_later(self._pace.failed(), self.poke)
                return


class Orders:
    """The lanes of all sessions of one supervisor."""

    def __init__(self, core: Core):
        self.core = core
        self._lanes: dict[uuid.UUID, tuple[Lane, Lane]] = {}
        self._starts: dict[uuid.UUID, uuid.UUID] = {}
        """Start orders that were seen while their lane was free, so that it need not look for them again."""

    def poke(self, session_id: uuid.UUID, *, overtakes: bool = True, start: uuid.UUID | None = None) -> None:
        """Look at a session's orders; at those that overtake unless it is known that there is none.

        ``start`` is its start order as somebody has seen it just now.
        """
        if session_id not in self._lanes:
            self._lanes[session_id] = (
                Lane(lambda: self._in_order(session_id), self.core.outage),
                Lane(lambda: self._overtaking(session_id), self.core.outage),
            )
        in_order, overtaking = self._lanes[session_id]
        if start is not None and in_order.is_free:
            self._starts[session_id] = start
        in_order.poke()
        if overtakes:
            overtaking.poke()

    async def look(self) -> None:
        """Poke every session that has something to do."""
        found = await self.core.database(sessions_with_orders, self.core.boot_id)
        for session_id, one in found.items():
            self.poke(session_id, overtakes=one.overtakes, start=one.start)

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
        intent_id = self._starts.pop(session_id, None) or await self.core.database(next_start, session_id)
        if intent_id is None:
            with acting.acting(session_id=session_id, cause="prompt"):
                return await send_next(self.core, session_id)
        with acting.acting(session_id=session_id, intent_id=intent_id, cause="start"):
            await starting.carry_out(self.core, session_id, intent_id)
        return await self.core.database(_is_done, intent_id)

    async def _overtaking(self, session_id: uuid.UUID) -> bool:
        intent = await self.core.database(next_overtaking, session_id)
        if intent is None:
            return False
        with acting.acting(session_id=session_id, intent_id=intent.id, cause=intent.kind):
            return await commands.carry_out(self.core, intent)


def _is_done(intent_id: uuid.UUID) -> bool:
    return Intent.objects.filter(id=intent_id, done_at__isnull=False).exists()

"""Limit how many starts a supervisor creates automatically, and decide which session is next.

``KANDEV_MAX_STARTS_PER_PASS`` limits its open start intents, and each executor has limited room. A session beyond
these limits gets a place in the start queue, stored in its row (``start_rank``).
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Hashable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime

from django.conf import settings
from django.db.models import QuerySet
from django.utils import timezone

from executors_app import capacity
from executors_app.models import Executor, ExecutorRunning
from sessions_app.confined.admission import Admission, Ticket
from sessions_app.kernel.rules.states import ENDED_STATES, DesiredState
from sessions_app.models import QUEUED_FOR_CAPACITY, Intent, IntentKind, TaskSession
from sessions_app.starts.rules import restart_rules
from sessions_app.starts.rules.restart_rules import Applicant, QueuedSession, WaitReason
from sessions_app.supervisor import leases

THIS_MACHINE = "this machine"
"""The place of all executors that share this machine's memory."""
ANYWHERE = "anywhere"
"""The place of sessions without an agent, which need no room."""


@dataclass
class StartSlots:
    """Counts the starts that one supervisor has admitted.

    An intent counts as open only once it is committed. These counters cover the time before, so that two concurrent
    sweeps do not both use the last slot.
    """

    given: int = 0
    """Starts admitted since this process began."""
    under_way: int = 0
    """Admitted starts whose intent is not committed yet."""
    waiting: set[uuid.UUID] = field(default_factory=set)
    """Sessions whose starts have taken long enough to give their place to others (``StartGate``)."""


BUSY_SECONDS = 20.0
"""How long a start keeps its place. One that takes longer mostly waits, for a clone or for an agent that loads a long
conversation, and must not keep other sessions from starting."""


class StartGate:
    """Limits how many starts are carried out at the same time; those that take long do not count.

    Executors whose starts wait take turns: however many starts wait for one that does not answer, those of another
    executor begin with the next place that is free.
    """

    def __init__(self, limit: int, slots: StartSlots):
        self._turns = Admission(running=limit, running_per_owner=limit, waiting_per_owner=None)
        self._slots = slots

    @asynccontextmanager
    async def place(self, session_id: uuid.UUID, load_executor: Callable[[], Awaitable[str]]) -> AsyncIterator[None]:
        """Hold a place for at most ``BUSY_SECONDS``; the block itself may take longer.

        ``load_executor`` returns the executor of the session. It is not called as long as places are free.
        """
        executor_id = ""
        if self._turns.is_full:
            executor_id = await load_executor()
        ticket = self._turns.enter(executor_id)
        try:
            await asyncio.wrap_future(ticket.admitted)
        except BaseException:
            self._turns.leave(ticket)
            raise
        timer = asyncio.get_running_loop().call_later(BUSY_SECONDS, self._give_up_place, session_id, ticket)
        try:
            yield
        finally:
            timer.cancel()
            if session_id in self._slots.waiting:
                self._slots.waiting.discard(session_id)
            else:
                self._turns.leave(ticket)

    def _give_up_place(self, session_id: uuid.UUID, ticket: Ticket) -> None:
        self._slots.waiting.add(session_id)
        self._turns.leave(ticket)


def load_executor_id(session_id: uuid.UUID) -> str:
    """Return the id of a session's executor; empty if the session is gone."""
    return str(TaskSession.objects.filter(id=session_id).values_list("executor_id", flat=True).first() or "")


@dataclass
class Allowance:
    """How many starts a sweep may create, and where."""

    start_slots: StartSlots
    budget: int
    admitted_before: int
    room: dict[Hashable, int | None] = field(default_factory=dict)
    """How many more agents each place has room for; None: no limit."""
    places: Mapping[uuid.UUID, Hashable] = field(default_factory=dict)
    """The place of each executor."""
    ranks: list[int] = field(default_factory=list)
    """Ranks of the sessions that wait already, before which no other is admitted."""

    @property
    def left(self) -> int:
        """How many more starts may be admitted now."""
        return self.budget - (self.start_slots.given - self.admitted_before)

    def judge(
        self, applicants: Collection[Applicant], *, admitted: bool
    ) -> dict[uuid.UUID, tuple[int, WaitReason, int]]:
        """Admit as many applicants as the limits allow, in fair order; return those that have to wait.

        The result maps each waiting session to its rank, the reason, and how many are before it. ``admitted`` means
        that the applicants come from the queue, so that other waiting sessions do not hold them back.
        """
        new = restart_rules.rank_applicants(applicants, self.ranks)
        teams = {one.session_id: one for one in applicants}
        waiting = [QueuedSession(key, teams[key].team, teams[key].place, rank) for key, rank in new.items()]
        order = restart_rules.order_by_turn(waiting)
        budget = 0
        if admitted or not self.ranks:
            budget = max(self.left, 0)
        now, later = restart_rules.decide_admission(order, budget, self.room)
        self._let_in(now)
        before = len(self.ranks)
        postponed = {}
        for number, session in enumerate(session for session in order if session.session_id in later):
            postponed[session.session_id] = (session.rank, later[session.session_id], before + number)
        self.ranks += [rank for rank, *_ in postponed.values()]
        return postponed

    def _let_in(self, now: Iterable[QueuedSession]) -> None:
        for one in now:
            self.start_slots.given += 1
            self.start_slots.under_way += 1
            left = self.room.get(one.place)
            if left is not None:
                self.room[one.place] = left - 1

    def place_of(self, executor_id: uuid.UUID, *, has_agent: bool) -> Hashable:
        """Return the place whose room an executor's sessions use."""
        if has_agent:
            return self.places.get(executor_id, executor_id)
        return ANYWHERE


def start_allowance(boot_id: str, slots: StartSlots, gone: Collection[uuid.UUID] = ()) -> Allowance:
    """Return how many starts ``boot_id`` may create now; a constant number of queries.

    ``gone`` are sessions whose executions were observed dead although their rows still claim to run.
    """
    # Copied before the rows are read: a start admitted meanwhile by another sweep is then subtracted in ``left``.
    given, under_way = slots.given, slots.under_way
    waiting_ids = list(slots.waiting)
    own_starts = Intent.objects.filter(kind=IntentKind.START, by=None, done_at=None, session__executions__owner=boot_id)
    own_starts = own_starts.exclude(session_id__in=waiting_ids)
    under_way += own_starts.count() - own_starts.filter(**{f"payload__{QUEUED_FOR_CAPACITY}": True}).count()
    room, places = _free_capacity(gone)
    waiting = TaskSession.objects.filter(start_rank__isnull=False).values_list("start_rank", flat=True)
    ranks = [rank for rank in waiting if rank is not None]
    return Allowance(slots, settings.KANDEV_MAX_STARTS_PER_PASS - under_way, given, room, places, ranks)


def _free_capacity(gone: Collection[uuid.UUID]) -> tuple[dict[Hashable, int | None], dict[uuid.UUID, Hashable]]:
    """Return the room that each place has left, and the place of each executor."""
    executors = list(Executor.objects.all())
    alive = ExecutorRunning.objects.filter(capacity.MAY_RUN, session__start_rank=None, session__has_agent=True)
    live = _by_executor(alive) - _by_executor(alive.filter(session_id__in=gone))
    started = Intent.objects.filter(kind=IntentKind.START, done_at=None, session__has_agent=True).exclude(
        session__executions__in=ExecutorRunning.objects.filter(capacity.MAY_RUN)
    )
    live.update(started.values_list("session__executor_id", flat=True))
    room: dict[Hashable, int | None] = {}
    places: dict[uuid.UUID, Hashable] = {}
    for executor in executors:
        place: Hashable = executor.id
        limit = executor.max_live
        if capacity.shares_machine_limit(executor):
            place = (THIS_MACHINE, executor.host_id)
            limit = room.get(place, capacity.agent_limit(executor))
        places[executor.id] = place
        room[place] = limit
        if limit is not None:
            room[place] = limit - live[executor.id]
    return room, places


def _by_executor(rows: QuerySet[ExecutorRunning]) -> Counter[uuid.UUID]:
    # Counted here: to group, SQLite would read the executions of all times in the order of an index by executor.
    return Counter(rows.order_by().values_list("executor_id", flat=True))


def load_next_starts(boot_id: str, slots: StartSlots) -> list[uuid.UUID]:
    """Return the sessions of the start queue whose turn it is; empty if no more starts are allowed now."""
    waiting = TaskSession.objects.filter(start_rank__isnull=False)
    if not waiting.exists():
        return []
    allowed = start_allowance(boot_id, slots)
    if allowed.left <= 0:
        return []
    rows = waiting.values_list("id", "task__team_id", "executor_id", "has_agent", "start_rank")
    order = restart_rules.order_by_turn(
        QueuedSession(key, team, allowed.place_of(executor, has_agent=has_agent), rank)
        for key, team, executor, has_agent, rank in rows
        if rank is not None
    )
    of_others = _sessions_of_others(boot_id)
    now, _ = restart_rules.decide_admission(
        [one for one in order if one.session_id not in of_others], allowed.left, allowed.room
    )
    return [one.session_id for one in now]


def _sessions_of_others(boot_id: str) -> set[uuid.UUID]:
    rows = ExecutorRunning.objects.filter(session__start_rank__isnull=False).exclude(owner__in=("", boot_id))
    return leases.leased_by_others(rows.values_list("session_id", "owner", "lease_expires_at"), boot_id)


def leave_start_queue(session_ids: Iterable[uuid.UUID]) -> None:
    """Remove sessions from the start queue after their turn, whether or not they were started."""
    TaskSession.objects.filter(id__in=list(session_ids), start_rank__isnull=False).update(start_rank=None)


def load_due_restarts(at: datetime) -> frozenset[tuple[uuid.UUID, datetime]]:
    """Return the sessions whose restart is due at this time and that are not in the start queue, with the due time."""
    tried = TaskSession.objects.filter(next_restart_at__lte=at, start_rank=None)
    wanted = tried.filter(desired_state=DesiredState.RUNNING).exclude(state__in=ENDED_STATES)
    return frozenset((key, due) for key, due in wanted.values_list("id", "next_restart_at") if due is not None)


def next_start_due(after: datetime) -> datetime | None:
    """Return when the start queue needs the next check, according to the rows: now if sessions wait in it.

    ``after`` is the time for which ``load_due_restarts`` was last called. A restart that has become due since then is
    the next one, with a time that has passed.
    """
    if TaskSession.objects.filter(start_rank__isnull=False).exists():
        return timezone.now()
    later = TaskSession.objects.filter(next_restart_at__gt=after)
    return later.order_by("next_restart_at").values_list("next_restart_at", flat=True).first()

"""How many starts a supervisor orders by itself, and whose turn is next (design 9): nobody can make it storm.

Its own open orders are bounded by ``KANDEV_MAX_STARTS_PER_PASS``, and an executor by its room. A session
beyond that keeps a place in its row (``start_rank``); a place that becomes free goes to the next in turn.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from django.conf import settings
from django.db.models import Count, QuerySet
from django.utils import timezone

from executors_app import capacity
from executors_app.models import Executor, ExecutorRunning
from sessions_app.domain import restart_rules
from sessions_app.domain.restart_rules import Applicant, QueuedSession, WaitReason
from sessions_app.domain.states import ENDED_STATES, DesiredState
from sessions_app.models import QUEUED_FOR_CAPACITY, Intent, IntentKind, TaskSession
from sessions_app.supervisor import leases

THIS_MACHINE = "this machine"
"""The place of all executors that share its memory."""
ANYWHERE = "anywhere"
"""The place of what has no agent: it has room for any number."""


@dataclass
class StartSlots:
    """What one supervisor has let in of late; kept in memory, so that two sweeps at once do not both use one place."""

    given: int = 0
    """Starts that were let in since this process began."""
    under_way: int = 0
    """Of these, the ones whose order is not committed yet."""


@dataclass
class Allowance:
    """What a sweep may order."""

    start_slots: StartSlots
    budget: int
    admitted_before: int
    room: dict[Hashable, int | None] = field(default_factory=dict)
    places: Mapping[uuid.UUID, Hashable] = field(default_factory=dict)
    ranks: list[int] = field(default_factory=list)
    """Of those that wait already: nobody goes before them."""

    @property
    def left(self) -> int:
        """How many more may be let in now."""
        return self.budget - (self.start_slots.given - self.admitted_before)

    def judge(
        self, applicants: Collection[Applicant], *, admitted: bool
    ) -> dict[uuid.UUID, tuple[int, WaitReason, int]]:
        """Who has to wait: place, reason and how many are before it. The others are let in, in the fairest order.

        ``admitted``: their turn has come, so that those who wait are no reason to wait, too.
        """
        new = restart_rules.rank_applicants(applicants, self.ranks)
        teams = {one.session_id: one for one in applicants}
        waiting = [QueuedSession(key, teams[key].team, teams[key].place, rank) for key, rank in new.items()]
        order = restart_rules.order_by_turn(waiting)
        budget = max(self.left, 0) if admitted or not self.ranks else 0
        now, later = restart_rules.decide_admission(order, budget, self.room)
        self._let_in(now)
        before = len(self.ranks)
        told = {}
        for number, one in enumerate(one for one in order if one.session_id in later):
            told[one.session_id] = (one.rank, later[one.session_id], before + number)
        self.ranks += [rank for rank, *_ in told.values()]
        return told

    def _let_in(self, now: Iterable[QueuedSession]) -> None:
        for one in now:
            self.start_slots.given += 1
            self.start_slots.under_way += 1
            left = self.room.get(one.place)
            if left is not None:
                self.room[one.place] = left - 1

    def place_of(self, executor_id: uuid.UUID, *, has_agent: bool) -> Hashable:
        """What has room for an executor's agents."""
        return self.places.get(executor_id, executor_id) if has_agent else ANYWHERE


def start_allowance(me: str, slots: StartSlots, gone: Collection[uuid.UUID] = ()) -> Allowance:
    """What ``me`` may order now; a handful of queries. ``gone`` are sessions whose rows do not say so yet."""
    given, under_way = slots.given, slots.under_way
    mine = Intent.objects.filter(kind=IntentKind.START, by=None, done_at=None, session__executions__owner=me)
    under_way += mine.count() - mine.filter(**{f"payload__{QUEUED_FOR_CAPACITY}": True}).count()
    room, places = _free_capacity(gone)
    waiting = TaskSession.objects.filter(start_rank__isnull=False).values_list("start_rank", flat=True)
    ranks = [rank for rank in waiting if rank is not None]
    return Allowance(slots, settings.KANDEV_MAX_STARTS_PER_PASS - under_way, given, room, places, ranks)


def _free_capacity(gone: Collection[uuid.UUID]) -> tuple[dict[Hashable, int | None], dict[uuid.UUID, Hashable]]:
    """For how many more each place has room, and by executor which place it is."""
    executors = list(Executor.objects.all())
    alive = ExecutorRunning.objects.filter(
        status__in=capacity.LIVE_STATUSES, session__start_rank=None, session__has_agent=True
    )
    live = _by_executor(alive) - _by_executor(alive.filter(session_id__in=gone))
    started = Intent.objects.filter(kind=IntentKind.START, done_at=None, session__has_agent=True).exclude(
        session__executions__status__in=capacity.LIVE_STATUSES
    )
    live.update(started.values_list("session__executor_id", flat=True))
    room: dict[Hashable, int | None] = {}
    places: dict[uuid.UUID, Hashable] = {}
    for one in executors:
        shared = one.max_live is None and capacity.shares_memory(one.runtime)
        places[one.id] = place = THIS_MACHINE if shared else one.id
        limit = room.get(place, capacity.agent_limit(one)) if shared else one.max_live
        room[place] = None if limit is None else limit - live[one.id]
    return room, places


def _by_executor(rows: QuerySet[ExecutorRunning]) -> Counter[uuid.UUID]:
    return Counter(dict(rows.order_by().values_list("executor_id").annotate(Count("id"))))


def load_next_starts(me: str, slots: StartSlots) -> list[uuid.UUID]:
    """Those whose turn it is; nobody where nobody waits, or as many as may be are being started."""
    waiting = TaskSession.objects.filter(start_rank__isnull=False)
    if not waiting.exists():
        return []
    allowed = start_allowance(me, slots)
    if allowed.left <= 0:
        return []
    rows = waiting.values_list("id", "task__team_id", "executor_id", "has_agent", "start_rank")
    order = restart_rules.order_by_turn(
        QueuedSession(key, team, allowed.place_of(executor, has_agent=has_agent), rank)
        for key, team, executor, has_agent, rank in rows
        if rank is not None
    )
    held = _sessions_of_others(me)
    now, _ = restart_rules.decide_admission(
        [one for one in order if one.session_id not in held], allowed.left, allowed.room
    )
    return [one.session_id for one in now]


def _sessions_of_others(me: str) -> set[uuid.UUID]:
    rows = ExecutorRunning.objects.filter(session__start_rank__isnull=False).exclude(owner__in=("", me))
    return leases.leased_by_others(rows.values_list("session_id", "owner", "lease_expires_at"), me)


def leave_start_queue(session_ids: Iterable[uuid.UUID]) -> None:
    """Their turn came, and they are not to be started any more: the places are free."""
    TaskSession.objects.filter(id__in=list(session_ids), start_rank__isnull=False).update(start_rank=None)


def load_due_restarts() -> frozenset[tuple[uuid.UUID, datetime]]:
    """Sessions whose next try is due and that wait for nothing else, with its time: the loop comes by its own clock."""
    tried = TaskSession.objects.filter(next_restart_at__lte=timezone.now(), start_rank=None)
    wanted = tried.filter(desired_state=DesiredState.RUNNING).exclude(state__in=ENDED_STATES)
    return frozenset((key, at) for key, at in wanted.values_list("id", "next_restart_at") if at is not None)

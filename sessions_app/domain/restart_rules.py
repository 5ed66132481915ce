"""When a session is restarted without anybody asking: delays between restarts, and who is admitted first."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

FIRST_RESTART_DELAY = timedelta(seconds=5)
FIRST_STABLE_TIME, MAX_STABLE_TIME = timedelta(minutes=1), timedelta(minutes=10)
MAX_DELAY_FACTOR = 60
"""The longest wait is so many times the first."""


def restart_delay(attempt: int, random: float, first: timedelta = FIRST_RESTART_DELAY) -> timedelta:
    """The wait after the ``attempt``-th start (from 1) has failed: doubling up to sixty times the first.

    ``random`` in [0, 1) draws from the upper half of it, so that many do not start at once.
    """
    doublings = min(max(attempt, 1) - 1, 16)
    whole = min(first * (1 << doublings), first * MAX_DELAY_FACTOR)
    return whole * (0.5 + random / 2)


def restart_delay_after_death(attempts: int, random: float, first: timedelta = FIRST_RESTART_DELAY) -> timedelta:
    """The wait before an agent that has died is started again, after ``attempts`` restarts that did not help.

    The first restart is immediate: most agents die once, and of something that has passed.
    """
    return restart_delay(attempts, random, first) if attempts else timedelta()


def stable_after(attempts: int) -> timedelta:
    """How long an agent has to stay alive to count as healthy: longer with each restart, ten minutes at most."""
    return min(FIRST_STABLE_TIME * (1 << min(attempts, 8)), MAX_STABLE_TIME)


def is_exhausted(attempts: int, maximum: int) -> bool:
    """Whether only a user may start it again."""
    return attempts >= maximum


_URGENT = 1 << 40
"""Between the ranks of the urgent and those of the others."""


class WaitReason(StrEnum):
    """Why a session that should run waits to be started."""

    TURN = "turn"
    """So many are being started already."""
    CAPACITY = "capacity"
    """Its executor has no room for another agent."""


@dataclass(frozen=True, slots=True)
class Applicant:
    """A session that is to be started by itself."""

    session_id: uuid.UUID
    team: int
    place: Hashable
    """Whatever has room for so many agents."""
    urgent: bool
    since: datetime


@dataclass(frozen=True, slots=True)
class QueuedSession:
    """A session with its place in the queue."""

    session_id: uuid.UUID
    team: int
    place: Hashable
    rank: int


def rank_applicants(applicants: Iterable[Applicant], known: Collection[int]) -> dict[uuid.UUID, int]:
    """Places behind those that have one (``known``): urgent ones in their own queue, each oldest first."""
    found: dict[uuid.UUID, int] = {}
    last = {True: -_URGENT, False: 0}
    for rank in known:
        last[rank < 0] = max(last[rank < 0], rank)
    for one in sorted(applicants, key=lambda one: (one.since, one.session_id)):
        last[one.urgent] += 1
        found[one.session_id] = last[one.urgent]
    return found


def order_by_turn(waiting: Iterable[QueuedSession]) -> list[QueuedSession]:
    """Everybody in the order of their turns: the urgent first, the teams one after the other."""
    rounds: dict[tuple[bool, int], int] = defaultdict(int)
    turns = []
    for one in sorted(waiting, key=lambda one: one.rank):
        line = (one.rank < 0, one.team)
        turns.append((one.rank > 0, rounds[line], one.rank, one))
        rounds[line] += 1
    return [one for *_, one in sorted(turns, key=lambda turn: turn[:3])]


def decide_admission(
    order: Sequence[QueuedSession], budget: int, room: Mapping[Hashable, int | None]
) -> tuple[list[QueuedSession], dict[uuid.UUID, WaitReason]]:
    """Who is started now, and why each of the others waits; whose place is full holds nobody else up.

    ``room`` is for how many more agents each place has room; None, or a place that is not named: for any number.
    """
    left = {place: number for place, number in room.items() if number is not None}
    now: list[QueuedSession] = []
    later: dict[uuid.UUID, WaitReason] = {}
    for one in order:
        if left.get(one.place, 1) <= 0:
            later[one.session_id] = WaitReason.CAPACITY
        elif len(now) >= budget:
            later[one.session_id] = WaitReason.TURN
        else:
            now.append(one)
            if one.place in left:
                left[one.place] -= 1
    return now, later


def count_before(rank: int, mine: int, others: Mapping[int, int], urgent: int) -> int:
    """How many have their turn before the one with ``rank``.

    ``mine``: of its own team and queue, those with a lower rank; ``others``: by team, how many wait in that queue;
    ``urgent``: how many wait in the queue of the urgent, which goes first.
    """
    ahead = mine + sum(min(number, mine) for number in others.values())
    return ahead if rank < 0 else ahead + urgent

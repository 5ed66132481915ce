"""Rules for automatic restarts: the delay between them, and the order in which sessions are started."""

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
"""The longest delay is this many times the first."""


def restart_delay(attempt: int, random: float, first: timedelta = FIRST_RESTART_DELAY) -> timedelta:
    """Return the delay after the ``attempt``-th start (from 1) has failed: doubling, up to 60 times ``first``.

    ``random`` in [0, 1) chooses a point in the upper half of the delay, so that many sessions do not start together.
    """
    doublings = min(max(attempt, 1) - 1, 16)
    whole = min(first * (1 << doublings), first * MAX_DELAY_FACTOR)
    return whole * (0.5 + random / 2)


def restart_delay_after_death(attempts: int, random: float, first: timedelta = FIRST_RESTART_DELAY) -> timedelta:
    """Return the delay before an agent that died is started again, after ``attempts`` restarts.

    The first restart is immediate, because most agents die once, from a cause that has passed.
    """
    if attempts:
        return restart_delay(attempts, random, first)
    return timedelta()


def stable_after(attempts: int) -> timedelta:
    """Return how long an agent must live to count as healthy: one minute, doubling to at most ten."""
    return min(FIRST_STABLE_TIME * (1 << min(attempts, 8)), MAX_STABLE_TIME)


_URGENT = 1 << 40
"""Offset between the ranks of urgent sessions, which are negative, and those of all others."""


class WaitReason(StrEnum):
    """Why a session that should run is not started yet."""

    TURN = "turn"
    """Enough starts are in progress already."""
    CAPACITY = "capacity"
    """The executor has no room for another agent."""
    HOST = "host"
    """The host that would start it takes no new sessions."""
    PLACEMENT = "placement"
    """No supervisor can carry the start out: none is on its host, or none has the repository."""
    LAUNCH = "launch"
    """It has begun, and its place has not got what it needs yet, such as a cluster without room for its Pod."""


@dataclass(frozen=True, slots=True)
class Applicant:
    """A session to be started automatically, before it has a place in the queue."""

    session_id: uuid.UUID
    team: int
    place: Hashable
    """Identifies what the limit on agents applies to."""
    urgent: bool
    since: datetime


@dataclass(frozen=True, slots=True)
class QueuedSession:
    """A session with its rank in the start queue."""

    session_id: uuid.UUID
    team: int
    place: Hashable
    rank: int


def rank_applicants(applicants: Iterable[Applicant], known: Collection[int]) -> dict[uuid.UUID, int]:
    """Return a rank for each applicant, behind the ranks in use (``known``).

    Urgent applicants have their own queue. Within a queue, the longest waiting comes first.
    """
    found: dict[uuid.UUID, int] = {}
    last = {True: -_URGENT, False: 0}
    for rank in known:
        last[rank < 0] = max(last[rank < 0], rank)
    for one in sorted(applicants, key=lambda one: (one.since, one.session_id)):
        last[one.urgent] += 1
        found[one.session_id] = last[one.urgent]
    return found


def order_by_turn(waiting: Iterable[QueuedSession]) -> list[QueuedSession]:
    """Sort sessions by their turn: urgent ones first, and within a queue the teams alternate."""
    rounds: dict[tuple[bool, int], int] = defaultdict(int)
    turns = []
    for one in sorted(waiting, key=lambda one: one.rank):
        line = (one.rank < 0, one.team)
        # Sort key: the queue, the round of the session's team in it, and within a round the rank.
        turns.append((one.rank > 0, rounds[line], one.rank, one))
        rounds[line] += 1
    return [one for *_, one in sorted(turns, key=lambda turn: turn[:3])]


def decide_admission(
    order: Sequence[QueuedSession], budget: int, room: Mapping[Hashable, int | None]
) -> tuple[list[QueuedSession], dict[uuid.UUID, WaitReason]]:
    """Return the sessions to start now, and why each of the others waits.

    ``budget`` is how many starts are allowed now. ``room`` is how many more agents each place can run; None or a
    missing place means no limit. A session whose place is full does not delay those behind it.
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
    """Return how many sessions have their turn before the one with ``rank``.

    ``mine`` counts lower ranks of its own team in its queue. ``others`` counts by team how many wait in that queue.
    ``urgent`` counts the sessions in the urgent queue, which goes first.
    """
    # The teams alternate, so each other team gets about as many turns before this one as its own team.
    ahead = mine + sum(min(number, mine) for number in others.values())
    if rank < 0:
        return ahead
    return ahead + urgent

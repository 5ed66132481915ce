"""Who is started next, where more want to be started by themselves than may be at once.

A place in the queue is a number, the *rank*: negative for those whose work was cut short or that have a prompt
waiting, who go before all others. Behind that the teams take turns, and in a team the longest waiting is first.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

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
class Waiting:
    """A session with its place in the queue."""

    session_id: uuid.UUID
    team: int
    place: Hashable
    rank: int


def ranks(applicants: Iterable[Applicant], known: Collection[int]) -> dict[uuid.UUID, int]:
    """Places behind those that have one (``known``): urgent ones in their own queue, each oldest first."""
    found: dict[uuid.UUID, int] = {}
    last = {True: -_URGENT, False: 0}
    for rank in known:
        last[rank < 0] = max(last[rank < 0], rank)
    for one in sorted(applicants, key=lambda one: (one.since, one.session_id)):
        last[one.urgent] += 1
        found[one.session_id] = last[one.urgent]
    return found


def in_turn(waiting: Iterable[Waiting]) -> list[Waiting]:
    """Everybody in the order of their turns: the urgent first, the teams one after the other."""
    rounds: dict[tuple[bool, int], int] = defaultdict(int)
    turns = []
    for one in sorted(waiting, key=lambda one: one.rank):
        line = (one.rank < 0, one.team)
        turns.append((one.rank > 0, rounds[line], one.rank, one))
        rounds[line] += 1
    return [one for *_, one in sorted(turns, key=lambda turn: turn[:3])]


def admitted(
    order: Sequence[Waiting], budget: int, room: Mapping[Hashable, int | None]
) -> tuple[list[Waiting], dict[uuid.UUID, WaitReason]]:
    """Who is started now, and why each of the others waits; whose place is full holds nobody else up.

    ``room`` is for how many more agents each place has room; None, or a place that is not named: for any number.
    """
    left = {place: number for place, number in room.items() if number is not None}
    now: list[Waiting] = []
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


def before(rank: int, mine: int, others: Mapping[int, int], urgent: int) -> int:
    """How many have their turn before the one with ``rank``.

    ``mine``: of its own team and queue, those with a lower rank; ``others``: by team, how many wait in that queue;
    ``urgent``: how many wait in the queue of the urgent, which goes first.
    """
    ahead = mine + sum(min(number, mine) for number in others.values())
    return ahead if rank < 0 else ahead + urgent

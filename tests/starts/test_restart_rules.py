"""The order of starts: urgent sessions first, teams in turn, and the longest waiting of each."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessions_app.starts.rules.restart_rules import (
    Applicant,
    QueuedSession,
    WaitReason,
    count_before,
    decide_admission,
    order_by_turn,
    rank_applicants,
)

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


def named(name: str) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_OID, name)


def applicant(name: str, team: int = 1, *, urgent: bool = False, since: int = 0) -> Applicant:
    return Applicant(named(name), team, "here", urgent, EPOCH + timedelta(seconds=since))


def queue(*applicants: Applicant) -> list[uuid.UUID]:
    new = rank_applicants(applicants, ())
    waiting = [QueuedSession(one.session_id, one.team, one.place, new[one.session_id]) for one in applicants]
    return [one.session_id for one in order_by_turn(waiting)]


def test_longest_waiting_session_is_first() -> None:
    assert queue(applicant("young", since=9), applicant("old", since=1)) == [named("old"), named("young")]


def test_sessions_with_interrupted_work_come_first() -> None:
    order = queue(applicant("old", since=1), applicant("cut", team=2, urgent=True, since=9))
    assert order == [named("cut"), named("old")]


def test_large_team_does_not_delay_a_small_one() -> None:
    many = [applicant(f"many {number}", since=number) for number in range(5)]
    order = queue(*many, applicant("few", team=2, since=99))
    assert order.index(named("few")) == 1


def test_new_sessions_come_after_waiting_ones() -> None:
    new = rank_applicants([applicant("calm"), applicant("cut", urgent=True)], known=[7, 3, -5])
    assert new[named("calm")] > 7
    assert -5 < new[named("cut")] < 0


@pytest.mark.parametrize(
    ("budget", "room", "started", "reasons"),
    [
        (0, {}, [], {WaitReason.TURN}),
        (2, {}, ["a", "b"], {WaitReason.TURN}),
        (9, {"here": 1}, ["a"], {WaitReason.CAPACITY}),
        (9, {"here": 0}, [], {WaitReason.CAPACITY}),
        (9, {"here": -3}, [], {WaitReason.CAPACITY}),
        (9, {"here": None}, ["a", "b", "c"], set()),
        (9, {"there": 0}, ["a", "b", "c"], set()),
    ],
)
def test_starts_are_limited_by_budget_and_capacity(
    budget: int, room: dict[str, int | None], started: list[str], reasons: set[WaitReason]
) -> None:
    order = [QueuedSession(named(name), 1, "here", rank) for rank, name in enumerate("abc", 1)]
    now, later = decide_admission(order, budget, room)  # type: ignore[arg-type]
    assert [one.session_id for one in now] == [named(name) for name in started]
    assert set(later.values()) == reasons
    assert len(now) + len(later) == 3


def test_full_executor_delays_no_other() -> None:
    order = [QueuedSession(named("full"), 1, "full", 1), QueuedSession(named("free"), 1, "free", 2)]
    now, later = decide_admission(order, 1, {"full": 0, "free": 1})
    assert [one.session_id for one in now] == [named("free")]
    assert later == {named("full"): WaitReason.CAPACITY}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 4), st.booleans(), st.integers(0, 30)), max_size=25))
def test_every_session_has_one_place_and_the_reported_number(drawn: list[tuple[int, bool, int]]) -> None:
    several = [applicant(str(n), team, urgent=cut, since=since) for n, (team, cut, since) in enumerate(drawn)]
    new = rank_applicants(several, ())
    order = order_by_turn(QueuedSession(one.session_id, one.team, one.place, new[one.session_id]) for one in several)
    assert len({one.rank for one in order}) == len(order) == len(several)
    for place, one in enumerate(order):
        line = [other for other in order if (other.rank < 0) == (one.rank < 0)]
        mine = sum(other.rank < one.rank for other in line if other.team == one.team)
        others: dict[int, int] = {}
        for other in line:
            if other.team != one.team:
                others[other.team] = others.get(other.team, 0) + 1
        counted = count_before(one.rank, mine, others, sum(other.rank < 0 for other in order))
        assert counted <= place < counted + 4, "the error is less than the number of teams"

"""Whether and when a session goes on after a usage limit, as a table."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from sessions_app.suspensions.rules.suspension import (
    FIRST_PAUSE,
    LEAST_SPREAD,
    TRY_DELAYS,
    Continuation,
    CutOffTurn,
    continuation,
    wake_time,
)

RESET = datetime(2026, 3, 10, 18, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("has_prompt", "has_worked", "refuses_first", "before", "windows", "by_user", "expected"),
    [
        # Nobody has asked, and the policy is off.
        (True, False, False, 0, 0, False, Continuation.NOTHING),
        (True, True, False, 0, 0, False, Continuation.NOTHING),
        # A type that is proven to refuse before it works gets the prompt again without a policy.
        (True, False, True, 0, 0, False, Continuation.AGAIN),
        (True, True, True, 0, 0, False, Continuation.NOTHING),
        # Only once, so that an agent that reports a limit in every turn gets no endless series of prompts.
        (True, False, True, 1, 0, False, Continuation.NOTHING),
        (True, False, True, 1, 2, False, Continuation.AGAIN),
        # Once, or for several limits in a row.
        (True, True, False, 0, 1, False, Continuation.CONTINUE),
        (True, True, False, 1, 1, False, Continuation.NOTHING),
        (True, True, False, 1, 2, False, Continuation.CONTINUE),
        # Whether such a type has begun is not known, so it does not get the same prompt again by itself.
        (True, False, False, 0, 1, False, Continuation.CONTINUE),
        # A person needs no policy.
        (True, True, False, 5, 0, True, Continuation.CONTINUE),
        (True, False, False, 5, 0, True, Continuation.AGAIN),
        # There is nothing to continue.
        (False, True, True, 0, 9, True, Continuation.NOTHING),
    ],
)
def test_policy_decides_what_happens_to_the_turn(
    has_prompt: bool,
    has_worked: bool,
    refuses_first: bool,
    before: int,
    windows: int,
    by_user: bool,
    expected: Continuation,
) -> None:
    turn = CutOffTurn(has_prompt, has_worked, refuses_first, before)
    assert continuation(turn, windows, by_user=by_user) is expected


@pytest.mark.parametrize("has_worked", [False, True])
def test_cancelled_turn_is_continued_by_a_person_only(has_worked: bool) -> None:
    turn = CutOffTurn(True, has_worked, True, 0, is_withdrawn=True)
    assert continuation(turn, 9, by_user=False) is Continuation.WITHDRAWN
    assert continuation(turn, 9, by_user=True) in (Continuation.AGAIN, Continuation.CONTINUE)


def test_few_sessions_go_on_within_half_a_minute() -> None:
    assert wake_time(RESET, 1, 0) == RESET + FIRST_PAUSE
    assert wake_time(RESET, 1, 1) == RESET + FIRST_PAUSE + LEAST_SPREAD


def test_a_hundred_sessions_go_on_over_a_hundred_seconds() -> None:
    assert wake_time(RESET, 100, 1) == RESET + FIRST_PAUSE + timedelta(seconds=100)


@pytest.mark.parametrize("delay", [timedelta(0), TRY_DELAYS[0]], ids=["limit", "outage"])
def test_a_hundred_sessions_that_stop_together_do_not_go_on_together(delay: timedelta) -> None:
    chance = random.Random(7)
    times = [wake_time(RESET + delay, suspended, chance.random()) for suspended in range(100)]
    by_second = Counter(int((at - RESET).total_seconds()) for at in times)
    assert max(by_second.values()) <= 10
    assert min(times) >= RESET + delay + FIRST_PAUSE

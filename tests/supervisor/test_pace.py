"""What fails is tried again after ever longer pauses, and what succeeds, or fails seldom, at once."""

from __future__ import annotations

import asyncio
import time
import uuid

import pytest

from sessions_app.supervisor.backoff import MAX_DELAY, RESET_AFTER, Backoff
from sessions_app.supervisor.dispatcher import SessionQueue
from tests.waiting import eventually_async


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Monotonic seconds that a test sets."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_each_failure_rests_longer_up_to_a_bound(clock: list[float]) -> None:
    pace = Backoff()
    assert [round(pace.failed(), 1) for _ in range(8)] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, MAX_DELAY, MAX_DELAY]
    assert pace.rests
    clock[0] += MAX_DELAY
    assert not pace.rests


def test_a_success_and_a_minute_of_peace_forget_what_failed(clock: list[float]) -> None:
    pace = Backoff()
    pace.failed()
    pace.failed()
    pace.succeeded()
    assert (pace.rests, pace.is_reset, pace.failed()) == (False, True, 0.2)
    clock[0] += RESET_AFTER + 1
    assert (pace.is_reset, pace.failed()) == (True, 0.2)


async def test_a_lane_that_fails_tries_again_by_itself_and_not_at_every_poke() -> None:
    tries = []

    async def step() -> bool:
        tries.append(uuid.uuid4())
        if len(tries) < 3:
            raise RuntimeError("this row is beyond us")
        return False

    lane = SessionQueue(step)
    for _ in range(50):
        lane.wake()
        await asyncio.sleep(0)
    assert len(tries) == 1
    await eventually_async(lambda: len(tries) == 3, describe="it is tried again")

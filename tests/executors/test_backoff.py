"""Delays between retries grow up to a maximum and start over after a success."""

from __future__ import annotations

import time

import pytest

from executors_app.backoff import MAX_DELAY, PEER_INITIAL_DELAY, PEER_MAX_DELAY, RESET_AFTER, Backoff, jittered_delay


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list whose first value is the monotonic time in seconds."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_delays_double_up_to_the_maximum(clock: list[float]) -> None:
    backoff = Backoff()
    delays = [round(backoff.record_failure(), 1) for _ in range(8)]
    assert delays == [
        0.2,
        0.4,
        0.8,
        1.6,
        3.2,
        6.4,
        MAX_DELAY,
        MAX_DELAY,
    ]
    assert backoff.is_waiting
    clock[0] += MAX_DELAY
    assert not backoff.is_waiting


def test_success_or_a_quiet_minute_resets_the_delay(clock: list[float]) -> None:
    backoff = Backoff()
    backoff.record_failure()
    backoff.record_failure()
    backoff.reset()
    assert (backoff.is_waiting, backoff.is_reset, backoff.record_failure()) == (False, True, 0.2)
    clock[0] += RESET_AFTER + 1
    assert (backoff.is_reset, backoff.record_failure()) == (True, 0.2)


@pytest.mark.parametrize("failures", range(1, 12))
def test_delays_of_peers_grow_and_vary(failures: int) -> None:
    whole = min(PEER_MAX_DELAY, PEER_INITIAL_DELAY * 2 ** (failures - 1))
    drawn = [jittered_delay(failures) for _ in range(50)]
    assert all(whole / 2 <= one <= whole for one in drawn)
    assert len(set(drawn)) > 10

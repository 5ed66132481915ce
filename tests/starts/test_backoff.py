"""The delay before a failed start is retried."""

from __future__ import annotations

from datetime import timedelta

import pytest

from sessions_app.starts.rules.restart_rules import FIRST_RESTART_DELAY, MAX_DELAY_FACTOR, restart_delay


@pytest.mark.parametrize(
    ("attempt", "random", "seconds"),
    [
        (1, 0.0, 2.5),
        (1, 1.0, 5),
        (2, 1.0, 10),
        (3, 0.5, 15),
        (7, 1.0, 300),
        (8, 0.0, 150),
        (10_000, 1.0, 300),
        (0, 1.0, 5),
    ],
)
def test_delay_doubles_up_to_five_minutes(attempt: int, random: float, seconds: float) -> None:
    assert restart_delay(attempt, random) == timedelta(seconds=seconds)


@pytest.mark.parametrize("random", [0.0, 0.3, 0.999])
def test_delay_never_shrinks_and_has_a_maximum(random: float) -> None:
    waits = [restart_delay(attempt, random) for attempt in range(1, 20)]
    assert waits == sorted(waits)
    assert max(waits) <= FIRST_RESTART_DELAY * MAX_DELAY_FACTOR

"""What is known of a process follows from its last sign of life."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from sessions_app.hosts.rules.life_signs import BEAT_EVERY, Life, beat_every, judge_life

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
SILENT_AFTER = timedelta(seconds=15)


@pytest.mark.parametrize(
    ("beat_at", "ended_at", "life"),
    [
        (NOW, None, Life.UP),
        (NOW - SILENT_AFTER, None, Life.UP),
        (NOW - SILENT_AFTER - SECOND, None, Life.SILENT),
        (NOW + SECOND, None, Life.UP),
        (NOW, NOW, Life.STOPPED),
        (NOW - SILENT_AFTER - SECOND, NOW, Life.STOPPED),
    ],
    ids=["just now", "two are missing", "silent", "a clock that went back", "ended", "ended, as its host has found"],
)
def test_life_of_a_process(beat_at: datetime, ended_at: datetime | None, life: Life) -> None:
    assert judge_life(beat_at, ended_at, NOW, silent_after=SILENT_AFTER) is life


def test_process_that_was_told_to_end_is_stopping_until_it_falls_silent() -> None:
    assert judge_life(NOW, None, NOW, stopping_at=NOW, silent_after=SILENT_AFTER) is Life.STOPPING
    assert judge_life(NOW - SILENT_AFTER - SECOND, None, NOW, stopping_at=NOW, silent_after=SILENT_AFTER) is Life.SILENT
    assert judge_life(NOW, NOW, NOW, stopping_at=NOW, silent_after=SILENT_AFTER) is Life.STOPPED


@pytest.mark.parametrize(
    ("lease", "is_shared", "seconds"),
    [(15, True, 5), (6, True, 2), (600, True, BEAT_EVERY), (15, False, BEAT_EVERY)],
    ids=["a third of a lease", "a short lease", "a very long lease", "an embedded database"],
)
def test_process_reports_often_enough_to_be_missed_within_a_lease(
    lease: float, is_shared: bool, seconds: float
) -> None:
    assert beat_every(lease, is_shared=is_shared) == seconds

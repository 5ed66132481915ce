"""What is known of a process follows from its last sign of life."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from sessions_app.hosts.rules.life_signs import SILENT_AFTER, Life, judge_life

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


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
    assert judge_life(beat_at, ended_at, NOW) is life


def test_process_that_was_told_to_end_is_stopping_until_it_falls_silent() -> None:
    assert judge_life(NOW, None, NOW, stopping_at=NOW) is Life.STOPPING
    assert judge_life(NOW - SILENT_AFTER - SECOND, None, NOW, stopping_at=NOW) is Life.SILENT
    assert judge_life(NOW, NOW, NOW, stopping_at=NOW) is Life.STOPPED

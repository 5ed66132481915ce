"""What an agent says when it waits by itself for the end of a limit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from executors_app.agents.own_waits import SAMPLES, find_own_wait

NOW = datetime(2026, 3, 10, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize("text", SAMPLES)
def test_samples_are_recognised(text: str) -> None:
    assert find_own_wait(text, NOW) is not None


@pytest.mark.parametrize(
    ("text", "until"),
    [
        ("Claude Code will continue automatically at 3pm (Europe/Berlin). Keep this session open.", "2026-03-10T14:00"),
        ("Usage limit reached. Waiting until 3pm.", "2026-03-10T15:00"),
        ("You've hit your session limit · resets 3pm (UTC). Waiting for the limit to reset…", "2026-03-10T15:00"),
        ("Quota exceeded. Will resume automatically in 3h 5m.", "2026-03-10T15:05"),
        ("Sleeping until 2026-03-10T18:00:00Z, then retrying.", "2026-03-10T18:00"),
        ("Claude Code will continue automatically shortly.", None),
        ("Usage limit reached. I am going to resume automatically at 3pm.", "2026-03-10T15:00"),
        ("You've hit your limit. Waiting for it to reset before retrying automatically at 3pm.", "2026-03-10T15:00"),
        ("Limit reached. The turn is scheduled to continue automatically in 3h.", "2026-03-10T15:00"),
    ],
)
def test_end_of_the_wait_is_read(text: str, until: str | None) -> None:
    wait = find_own_wait(text, NOW)
    assert wait is not None
    assert wait.until == (datetime.fromisoformat(until).replace(tzinfo=UTC) if until else None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I have fixed the loop that was waiting for the lock.",
        "You've hit your session limit · resets 3pm (UTC)",
        "Waiting for usage limits to reset was turned off. 2 waiting agents will not run again.",
        "The script is waiting until the database is up.",
        "The test now waits until the server is up.",
        "I have added a client that retries automatically.",
        "The hook automatically resumes the upload, and its tests pass.",
        "Usage limit reached. I will not continue automatically.",
        "Usage limit reached. Claude Code won’t automatically retry.",
        "The limit resets at 3pm. It does not resume automatically.",
        "You've hit your limit. Enable the setting to continue automatically when the limit resets.",
    ],
)
def test_other_texts_announce_no_wait(text: str) -> None:
    assert find_own_wait(text, NOW) is None


def test_what_is_said_after_the_wait_is_told_apart() -> None:
    text = "You've hit your limit. Waiting until 3pm.\nDone: the tests pass."
    wait = find_own_wait(text, NOW)
    assert wait is not None
    assert text[wait.end :].strip() == "Done: the tests pass."


def test_time_that_no_limit_has_is_unknown() -> None:
    wait = find_own_wait("Quota exceeded. Will resume automatically in 900 days.", NOW)
    assert wait is not None
    assert wait.until is None


def test_long_text_is_read_at_its_end_only() -> None:
    wait = find_own_wait("waiting until " * 100_000 + "\nUsage limit reached. Waiting until 3pm.", NOW)
    assert wait is not None
    assert wait.until == NOW + timedelta(hours=3)

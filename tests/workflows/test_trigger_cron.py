"""Cron expressions, in UTC."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from sessions_app.workflows.nodes.trigger import CronError, parse_cron

NOW = datetime(2026, 1, 31, 23, 58, 30, tzinfo=UTC)  # a Saturday


@pytest.mark.parametrize(
    ("expression", "following"),
    [
        ("* * * * *", "2026-01-31 23:59"),
        ("*/5 * * * *", "2026-02-01 00:00"),
        ("30 4 * * *", "2026-02-01 04:30"),
        ("0 0 1,15 * *", "2026-02-01 00:00"),
        ("0 0 29 2 *", "2028-02-29 00:00"),
        ("0 9 * * MON-FRI", "2026-02-02 09:00"),
        ("0 9 * * 7", "2026-02-01 09:00"),
        ("0 9 13 * 5", "2026-02-06 09:00"),
        ("0 0 1 JAN *", "2027-01-01 00:00"),
        ("10-20/5 8 * * *", "2026-02-01 08:10"),
        ("@daily", "2026-02-01 00:00"),
    ],
)
def test_next_time_is_computed(expression: str, following: str) -> None:
    assert f"{parse_cron(expression).next_after(NOW):%Y-%m-%d %H:%M}" == following


def test_impossible_date_has_no_next_time() -> None:
    assert parse_cron("0 0 30 2 *").next_after(NOW) is None


@pytest.mark.parametrize(
    "expression", ["", "* * * *", "60 * * * *", "5-1 * * * *", "*/0 * * * *", "x * * * *", "* * 0 * *"]
)
def test_invalid_expression_is_refused(expression: str) -> None:
    with pytest.raises(CronError):
        parse_cron(expression)

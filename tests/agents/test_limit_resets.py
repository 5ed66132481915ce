"""When a usage limit ends, by what agents and providers say."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

import pytest

from executors_app.agents import limit_resets
from executors_app.agents.limit_resets import LimitReset, find_reset

NOW = datetime(2026, 3, 10, 12, 0, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected", "zone"),
    [
        ("Claude AI usage limit reached|1773165600", "2026-03-10T18:00", "UTC"),
        ("You've hit your session limit · resets 7:30pm (Europe/Amsterdam)", "2026-03-10T18:30", "Europe/Amsterdam"),
        ("You\u2019ve hit your limit · resets 3am (UTC)", "2026-03-11T03:00", "UTC"),
        (
            "Claude usage limit reached. Your limit will reset at 7pm (Europe/Berlin).",
            "2026-03-10T18:00",
            "Europe/Berlin",
        ),
        ("5-hour limit reached ∙ resets 4pm", "2026-03-10T16:00", ""),
        ("You've hit your weekly limit · resets Mar 14 at 10am (UTC)", "2026-03-14T10:00", "UTC"),
        ("Weekly limit reached ∙ resets Mar 12, 10:30am (America/New_York)", "2026-03-12T14:30", "America/New_York"),
        ("Limit reached · resets 5pm · /upgrade to Max", "2026-03-10T17:00", ""),
        ("You have reached your weekly limit. Your limit will reset at 5 PM.", "2026-03-10T17:00", ""),
        ("You've hit your usage limit. Upgrade to Pro or try again in 3 hours 42 minutes.", "2026-03-10T15:42", "UTC"),
        ("You've hit your usage limit. Try again in 5 days 3 hours 20 minutes.", "2026-03-15T15:20", "UTC"),
        ("You've hit your usage limit. Try again at 3:05 PM.", "2026-03-10T15:05", ""),
        ("You've hit your usage limit or try again at Mar 12th, 2026 9:30 AM.", "2026-03-12T09:30", ""),
        (
            "You have exhausted your capacity on this model. Your quota will reset after 3h12m5s.",
            "2026-03-10T15:12:05",
            "UTC",
        ),
        ("Error: Your daily message limit has been reached (resets at 00:00 UTC)", "2026-03-11T00:00", "UTC"),
        ("You have hit the rate limit. Please try again in 20 minutes", "2026-03-10T12:20", "UTC"),
        ("Rate limit reached for requests. Please try again in 6m0s.", "2026-03-10T12:06", "UTC"),
        ("Resource exhausted. Please retry in 34.5s.", "2026-03-10T12:00:34.500", "UTC"),
        ("Sorry, you've hit a rate limit. Please wait 1 hour, and 20 minutes", "2026-03-10T13:20", "UTC"),
        ("Quota exceeded until 2026-03-11T00:00:00Z", "2026-03-11T00:00", "UTC"),
        ("Quota exceeded until 2026-03-11 00:00:00+01:00", "2026-03-10T23:00", "UTC"),
        ('{"error": {"type": "usage_limit_reached", "resets_at": 1773165600}}', "2026-03-10T18:00", "UTC"),
        ("Usage limit reached. Resets at 11:58am (UTC)", "2026-03-10T12:00", "UTC"),
        ("Usage limit reached. Resets at 9am (UTC)", "2026-03-11T09:00", "UTC"),
        ("Your credits renew. Limit resets April 1 at 12am (UTC)", "2026-04-01T00:00", "UTC"),
    ],
)
def test_reset_time_is_read_from_what_agents_say(text: str, expected: str, zone: str) -> None:
    assert find_reset(text, NOW) == LimitReset(at(expected), zone)


def test_time_without_a_zone_is_that_of_the_agents_machine_and_not_exact() -> None:
    found = find_reset("5-hour limit reached ∙ resets 4pm", NOW, BERLIN)
    assert found == LimitReset(at("2026-03-10T15:00"), "")
    assert not found.is_exact


@pytest.mark.parametrize(
    "text",
    [
        "",
        "You've hit your limit.",
        "You have reached the maximum number of requests for today.",
        "resets 25:61",
        "resets 13pm (UTC)",
        "resets Feb 30 at 10am (UTC)",
        "usage limit reached|1000000000",
        "usage limit reached|9999999999",
        "usage limit reached|0999999999999",
        "try again in 999999 weeks",
        "try again in 0 seconds",
        "resets at 4 of the 5 hours",
        "Please wait for the 3 reviewers",
    ],
)
def test_text_without_a_credible_time_gives_none(text: str) -> None:
    assert find_reset(text, NOW) is None


def test_unknown_zone_counts_as_none() -> None:
    assert find_reset("limit reached · resets 4pm (Atlantis/Capital)", NOW) == LimitReset(at("2026-03-10T16:00"), "")
    assert find_reset("limit reached · resets 4pm (../../etc/passwd)", NOW) == LimitReset(at("2026-03-10T16:00"), "")


def test_text_that_names_many_zones_leads_to_few_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[str] = []
    monkeypatch.setattr(limit_resets, "_zone", searched.append)
    assert find_reset("resets Apr 30 at 3pm Nowhere/City " * 100, NOW) is None
    assert len(searched) <= 10


def test_reset_is_never_in_the_past() -> None:
    found = find_reset("limit reached · resets 11:58am (UTC)", NOW)
    assert found == LimitReset(NOW, "UTC")


@pytest.mark.parametrize("local", [UTC, ZoneInfo("Asia/Tokyo"), ZoneInfo("America/New_York")], ids=str)
@pytest.mark.parametrize(
    "text", ["0001-01-01 00:00:00+10:00", "9999-12-31T23:59:59-10:00", "0001-01-01 00:00", "9999-12-31 23:59"]
)
def test_first_and_last_days_that_can_be_written_give_none(text: str, local: tzinfo) -> None:
    assert find_reset(f"limit reached until {text}", NOW, local) is None

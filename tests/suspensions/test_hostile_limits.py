"""Texts of agents that name times which no limit has, or anything but a time."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from django.utils import timezone

from sessions_app.models import Suspension
from sessions_app.sessions.services.status import load_status
from sessions_app.suspensions import services
from sessions_app.suspensions.rules.suspension import LONGEST_HOLD
from tests.suspensions.test_services import claimed, queue, suspended_session

pytestmark = pytest.mark.django_db(transaction=True)
HOSTILE = {
    "huge seconds": "usage limit reached|99999999999999999999999999",
    "far seconds": "usage limit reached|9999999999",
    "far milliseconds": "usage limit reached|9999999999999",
    "milliseconds that begin with 0": "usage limit reached|0999999999999",
    "negative": "usage limit reached|-1767225600, try again in -5 hours",
    "year 9999": "You've hit your session limit · resets 9999-12-31T23:59:59Z",
    "last moment": "You've hit your session limit · resets 9999-12-31T23:59:59-14:00",
    "year 1": "You've hit your session limit · resets 0001-01-01T00:00:00+14:00",
    "no such date": "You've hit your session limit · resets Feb 31 2026 at 25:99",
    "many hours": "You've hit your session limit · try again in 999999 hours 999999 days",
    "many digits": f"You've hit your session limit · try again in {'9' * 5000} hours",
    "unicode digits": "You've hit your session limit · resets ٣:٣٠pm (UTC), try again in ٩٩٩٩٩٩ hours",
    "superscripts": "You've hit your session limit · resets ²:³⁰pm, try again in ² hours",
    "long s": "You've hit your session limit · resets ſep 3 at 3pm (ſurope/Berlin)",
    "zone outside": "You've hit your session limit · resets 3pm (Etc/../../passwd)",
    "unknown zone": "You've hit your session limit · resets 3pm (Aaaa/Bbbb)",
    "nul and surrogate": "You've hit your session limit · resets 3pm \x01\ufffe",
    "megabyte of times": "You've hit your session limit · " + "resets 3pm (Aaaa/Bbbb) " * 45_000,
    "megabyte of digits": "You've hit your session limit · resets " + "9" * 1_000_000,
    "megabyte of waits": "You've hit your session limit · " + "waiting until " * 75_000,
    "megabyte of spaces": "You've hit your session limit · resets" + " " * 1_000_000 + "3pm",
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_text_suspends_for_a_known_time_at_most(case: str) -> None:
    begun = time.process_time()
    session = suspended_session(HOSTILE[case])
    assert time.process_time() - begun < 20, "a text may not cost seconds of searching"
    row = Suspension.objects.get()
    assert len(row.message) <= 1000
    assert row.wakes_at is None or row.wakes_at <= timezone.now() + LONGEST_HOLD
    assert load_status(session).suspension is not None
    assert services.end_due_suspensions() == 0


def test_time_of_a_wrong_clock_holds_nothing_back() -> None:
    session = suspended_session()
    queue(session, "next")
    far = timezone.now() + LONGEST_HOLD + timedelta(days=1)
    Suspension.objects.update(wakes_at=far, resets_at=far)
    assert claimed(session) == "p2"
    assert services.end_due_suspensions() == 1

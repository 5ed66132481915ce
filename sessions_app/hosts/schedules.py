"""How late the schedules of the worker are: all of them stand still while no worker runs."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from django.db.models import Min
from django.utils import timezone
from django_q.models import Schedule

LATE_AFTER: Final = timedelta(minutes=5)
"""A worker looks for due schedules every half minute, and what they order may wait for a long job."""


def schedule_lag() -> timedelta:
    """Return how late the most overdue schedule is; zero if none is. One query."""
    oldest: datetime | None = Schedule.objects.exclude(repeats=0).aggregate(at=Min("next_run"))["at"]
    if oldest is None:
        return timedelta()
    return max(timezone.now() - oldest, timedelta())


def late_since() -> datetime | None:
    """Return since when a schedule is due that is so late that somebody should look at the worker; None: none is."""
    lag = schedule_lag()
    return timezone.now() - lag if lag > LATE_AFTER else None

"""How late the schedules are is told, and after an outage of all workers each runs once."""

from __future__ import annotations

import json
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import call_command
from django.utils import timezone
from django_q.models import OrmQ, Schedule
from django_q.scheduler import scheduler

from kandev.metrics import collect_metrics
from sessions_app.hosts.schedules import LATE_AFTER, late_since, schedule_lag

pytestmark = pytest.mark.django_db


def due_since(**ago: float) -> None:
    Schedule.objects.update(next_run=timezone.now() - timedelta(**ago))


def test_lag_is_that_of_the_most_overdue_schedule() -> None:
    due_since(hours=-1)
    assert (schedule_lag(), late_since()) == (timedelta(), None)
    newest = Schedule.objects.latest("id")
    newest.next_run = timezone.now() - LATE_AFTER / 2
    newest.save()
    assert LATE_AFTER / 2 <= schedule_lag() < LATE_AFTER
    assert late_since() is None
    due_since(hours=3)
    since = late_since()
    assert since is not None
    assert since <= timezone.now() - timedelta(hours=3)


def test_lag_is_a_metric_and_a_figure_of_the_command() -> None:
    due_since(hours=3)
    out = StringIO()
    call_command("hosts", "--json", stdout=out)
    assert json.loads(out.getvalue())["schedule_lag_seconds"] >= 3 * 3600
    ((_, seconds),) = collect_metrics()["kandev_schedule_lag_seconds"]
    assert seconds >= 3 * 3600


def test_schedule_that_was_due_many_times_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_q.scheduler.close_old_django_connections", lambda: None)  # it is that of the test
    due_since(days=2)
    number = Schedule.objects.count()
    assert number > 1
    scheduler()
    assert OrmQ.objects.count() == number
    assert schedule_lag() == timedelta()
    scheduler()
    assert OrmQ.objects.count() == number

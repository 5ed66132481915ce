"""The schedules of the worker, created after each migration and again if they are missing."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from django.db import connection
from django.utils import timezone
from django_q.models import Schedule

SCHEDULES: Final[Mapping[str, Mapping[str, Any]]] = {
    "maintenance": {"func": "sessions_app.tasks.maintenance.maintain", "schedule_type": Schedule.HOURLY},
    "notifications": {
        "func": "sessions_app.tasks.notifications.notify",
        "schedule_type": Schedule.MINUTES,
        "minutes": 1,
    },
    "workflows": {"func": "sessions_app.tasks.workflows.start_due", "schedule_type": Schedule.MINUTES, "minutes": 1},
}
"""Fields of each schedule, by its name. Workers of release 1.0 know these paths, too (``sessions_app.tasks``)."""
FIRST_RUN_DELAY: Final = timedelta(minutes=10)
"""Delay of the first run, so that it does not slow down a start."""
FIRST_RUN_DELAYS: Final[Mapping[str, timedelta]] = {"workflows": timedelta(seconds=10)}
"""Shorter delays for jobs that people wait for, such as a workflow that is due."""


def ensure_schedules(**signal: Any) -> None:
    """Create missing schedules, correct changed ones and delete duplicates. A ``post_migrate`` handler, too."""
    if Schedule._meta.db_table not in connection.introspection.table_names():
        return  # the app of the worker is not migrated yet
    there = {row.name: row for row in Schedule.objects.filter(name__in=SCHEDULES).order_by("-id")}
    for name, wanted in SCHEDULES.items():
        row = there.get(name)
        if row is None:
            first = timezone.now() + FIRST_RUN_DELAYS.get(name, FIRST_RUN_DELAY)
            Schedule.objects.create(name=name, next_run=first, **wanted)
        elif any(getattr(row, field) != value for field, value in wanted.items()):
            Schedule.objects.filter(name=name).update(**wanted)
    Schedule.objects.filter(name__in=SCHEDULES).exclude(id__in=_newest_schedule_ids()).delete()


def _newest_schedule_ids() -> list[int]:
    """Return the newest schedule of each name; two processes may have created one at the same time."""
    ids: dict[str, int] = dict(Schedule.objects.filter(name__in=SCHEDULES).order_by("id").values_list("name", "id"))
    return list(ids.values())

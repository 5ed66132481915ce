"""What the worker does regularly; made when the database is migrated, and again by whoever finds it gone."""

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
"""By name; whatever else a schedule is made of may be said, too."""
FIRST_RUN_DELAY: Final = timedelta(minutes=10)
"""A deployment that has just come up has other things to do."""
FIRST_RUN_DELAYS: Final[Mapping[str, timedelta]] = {"workflows": timedelta(seconds=10)}
"""What people wait for: a workflow that is due now is not started ten minutes late."""


def ensure_schedules(**signal: Any) -> None:
    """Let every schedule be there, once, as it is said here. Called after each migration, too."""
    if Schedule._meta.db_table not in connection.introspection.table_names():
        return  # only a part was migrated
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
    """Of two that were made at the same moment one is enough."""
    ids: dict[str, int] = dict(Schedule.objects.filter(name__in=SCHEDULES).order_by("id").values_list("name", "id"))
    return list(ids.values())

"""The worker's queue, to look at. A schedule names a function to call, so none is made or changed by hand."""

from __future__ import annotations

from django.contrib import admin
from django_q.admin import FailAdmin, QueueAdmin, ScheduleAdmin, TaskAdmin
from django_q.models import Failure, OrmQ, Schedule, Success

from executors_app.staff_admin import ReadOnly

for _model in (Schedule, Success, Failure, OrmQ):
    admin.site.unregister(_model)


@admin.register(Schedule)
class Schedules(ReadOnly, ScheduleAdmin):  # type: ignore[misc]
    """What is to be done when."""

    readonly_fields = ()


@admin.register(Success)
class Successes(ReadOnly, TaskAdmin):  # type: ignore[misc]
    """What was done."""

    date_hierarchy = "stopped"
    readonly_fields = ()


@admin.register(Failure)
class Failures(ReadOnly, FailAdmin):  # type: ignore[misc]
    """What could not be done; it is tried again by itself."""

    date_hierarchy = "stopped"
    readonly_fields = ()


@admin.register(OrmQ)
class Queue(ReadOnly, QueueAdmin):  # type: ignore[misc]
    """What waits for a worker."""

    hidden = ("payload",)
    readonly_fields = ("task_id", "name", "group", "func")

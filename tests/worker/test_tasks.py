"""Jobs and schedules have the dotted paths of release 1.0, whose workers may run beside those of this one."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.utils import timezone
from django_q.models import Schedule
from django_q.tasks import async_task

from sessions_app.notifications.delivery import ROUND_TASK
from sessions_app.notifications.user_settings import GIVE_TASK
from sessions_app.worker import maintenance, notifications, schedules, workflows

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("path", "function", "arguments"),
    [
        ("sessions_app.tasks.maintenance.maintain", maintenance.maintain, ()),
        ("sessions_app.tasks.notifications.notify", notifications.notify, ()),
        ("sessions_app.tasks.notifications.give", notifications.give, (uuid.uuid4(),)),
        ("sessions_app.tasks.workflows.start_due", workflows.start_due, ()),
    ],
)
def test_job_queued_under_the_path_of_release_1_0_runs(
    path: str, function: Callable[..., Any], arguments: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Any, ...]] = []
    module = {"maintenance": maintenance, "notifications": notifications, "workflows": workflows}[path.split(".")[2]]
    monkeypatch.setattr(module, function.__name__, lambda *given: calls.append(given))
    async_task(path, *arguments, sync=True)
    assert calls == [arguments]


def test_schedules_and_queued_jobs_have_paths_that_release_1_0_knows() -> None:
    paths = {fields["func"] for fields in schedules.SCHEDULES.values()} | {ROUND_TASK, GIVE_TASK}
    assert paths == {
        "sessions_app.tasks.maintenance.maintain",
        "sessions_app.tasks.notifications.notify",
        "sessions_app.tasks.notifications.give",
        "sessions_app.tasks.workflows.start_due",
    }


def test_schedule_with_another_path_is_corrected_and_keeps_its_time() -> None:
    Schedule.objects.all().delete()
    due = timezone.now()
    Schedule.objects.create(
        name="maintenance",
        func="sessions_app.worker.maintenance.maintain",
        schedule_type=Schedule.HOURLY,
        next_run=due,
    )
    schedules.ensure_schedules()
    [corrected] = Schedule.objects.filter(name="maintenance")
    assert (corrected.func, corrected.next_run) == ("sessions_app.tasks.maintenance.maintain", due)

"""Jobs and schedules of release 1.0 have the former dotted paths of the worker's functions, and still run."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.utils import timezone
from django_q.models import Schedule
from django_q.tasks import async_task

from sessions_app.worker import maintenance, notifications, schedules, workflows

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("path", "function", "arguments"),
    [
        ("sessions_app.worker.maintenance.maintain", maintenance.maintain, ()),
        ("sessions_app.worker.notifications.notify", notifications.notify, ()),
        ("sessions_app.worker.notifications.give", notifications.give, (uuid.uuid4(),)),
        ("sessions_app.worker.workflows.start_due", workflows.start_due, ()),
    ],
)
def test_job_queued_under_its_former_path_runs(
    path: str, function: Callable[..., Any], arguments: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Any, ...]] = []
    module = {"maintenance": maintenance, "notifications": notifications, "workflows": workflows}[path.split(".")[2]]
    monkeypatch.setattr(module, function.__name__, lambda *given: calls.append(given))
    async_task(path, *arguments, sync=True)
    assert calls == [arguments]


def test_schedule_of_the_release_before_moves_to_the_new_path_once() -> None:
    Schedule.objects.all().delete()
    due = timezone.now()
    Schedule.objects.create(
        name="maintenance",
        func="sessions_app.worker.maintenance.maintain",
        schedule_type=Schedule.HOURLY,
        next_run=due,
    )
    schedules.ensure_schedules()
    [moved] = Schedule.objects.filter(name="maintenance")
    assert (moved.func, moved.next_run) == ("sessions_app.worker.maintenance.maintain", due)


def test_every_schedule_and_queued_job_names_a_function_of_the_worker() -> None:
    paths = {fields["func"] for fields in schedules.SCHEDULES.values()}
    assert {path.rpartition(".")[0].rpartition(".")[0] for path in paths} == {"sessions_app.worker"}

"""``manage.py maintain``, its schedule, and the report of orphans."""

from __future__ import annotations

import json
import subprocess
from io import StringIO
from pydoc import locate
from typing import Any

import pytest
from django.core.management import call_command
from django_q.models import Schedule

from sessions_app.accounts.models import LoginLink
from sessions_app.maintenance.chores import CHORES
from sessions_app.models import Chore
from sessions_app.worker import schedules
from tests.maintenance.chores import LONG_AGO
from tests.supervisor.commands import environment, manage
from tests.supervisor.rows import make_user

pytestmark = pytest.mark.django_db


def maintain(*flags: str) -> tuple[int, str]:
    """Run ``maintain``; return exit status and output."""
    out = StringIO()
    try:
        call_command("maintain", *flags, stdout=out)
    except SystemExit as end:
        return int(end.code or 0), out.getvalue()
    return 0, out.getvalue()


def old_link() -> None:
    LoginLink.objects.create(user=make_user(), secret_hash="x", expires_at=LONG_AGO)


def test_dry_run_lists_what_the_next_run_deletes() -> None:
    old_link()
    status, report = maintain("--dry-run", "--json")
    document = json.loads(report)
    assert (status, document["dry_run"], set(document["chores"])) == (0, True, set(CHORES))
    assert document["chores"]["logins"] == {"removed": 1, "kept": 0, "failed": False, "said": []}
    assert not Chore.objects.exists()
    assert maintain("--chore", "logins") == (0, "logins         removed 1, kept 0\n")
    assert not LoginLink.objects.exists()
    assert Chore.objects.get().removed == 1


def test_failed_chore_sets_the_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sessions_app.maintenance.chores.CHORES", {"keys": lambda work: 1 / 0})
    status, report = maintain()
    assert status == 1
    assert "keys           removed 0, kept 0  FAILED\n  ZeroDivisionError: division by zero\n" in report


def test_missing_database_is_status_2_and_one_line(tmp_path: Any) -> None:
    done = manage(environment(tmp_path / "data", KANDEV_DATABASE_URL="postgres://127.0.0.1:1/x"), "maintain")
    assert isinstance(done, subprocess.CompletedProcess)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)


def test_repeated_setup_makes_one_schedule() -> None:
    made = Schedule.objects.get(name="maintenance")
    assert (made.func, made.schedule_type) == ("sessions_app.tasks.maintenance.maintain", Schedule.HOURLY)
    schedules.ensure_schedules()
    assert Schedule.objects.get(name="maintenance").id == made.id
    Schedule.objects.create(name="maintenance", func="math.sqrt", schedule_type=Schedule.DAILY)
    schedules.ensure_schedules()
    schedules.ensure_schedules()
    (left,) = Schedule.objects.filter(name="maintenance")
    assert (left.func, left.schedule_type) == (made.func, made.schedule_type)
    Schedule.objects.all().delete()
    schedules.ensure_schedules()
    assert Schedule.objects.filter(name="maintenance").count() == 1


def test_schedule_names_an_importable_task() -> None:
    old_link()
    maintain = locate(Schedule.objects.get(name="maintenance").func)  # as the worker does
    assert callable(maintain)
    maintain()
    assert not LoginLink.objects.exists()
    assert set(Chore.objects.filter(failed_at=None).values_list("name", flat=True)) == set(CHORES)

"""Backups are recorded by whoever takes them, so that the age of the newest one can be watched."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from kandev.metrics import collect_metrics
from sessions_app.maintenance.backups import newest_backup, record_backup
from tests.hosts.processes import reported

pytestmark = pytest.mark.django_db
METRIC = "kandev_last_backup_timestamp_seconds"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def record(*options: str) -> str:
    out = StringIO()
    call_command("record_backup", *options, stdout=out)
    return out.getvalue()


def test_age_of_the_newest_backup_is_unknown_until_one_is_recorded() -> None:
    assert METRIC not in collect_metrics()
    record_backup("build-1", NOON, "/backup/1")
    record_backup("build-2", NOON + timedelta(hours=1), "/backup/2")
    assert collect_metrics()[METRIC] == [({}, (NOON + timedelta(hours=1)).timestamp())]


def test_age_of_the_newest_backup_is_known_for_each_host_in_use() -> None:
    reported("web", 5, name="build-1")
    reported("web", 5, name="build-3")
    record_backup("build-1", NOON, "/backup/1")
    record_backup("build-2", NOON, "/backup/2")
    assert collect_metrics()["kandev_host_last_backup_timestamp_seconds"] == [({"host": "build-1"}, NOON.timestamp())]


def test_older_backup_of_a_host_replaces_no_newer_one() -> None:
    assert record_backup("build-1", NOON, "/backup/1")
    assert not record_backup("build-1", NOON - timedelta(hours=1), "/backup/0")
    newest = newest_backup()
    assert newest is not None
    assert (newest.began_at, newest.place) == (NOON, "/backup/1")


def test_command_records_when_the_copy_began(settings: object) -> None:
    settings.KANDEV_HOST_NAME = "build-1"  # type: ignore[attr-defined]
    assert record("--began", "2026-01-01T12:00:00Z", "--place", "/backup/1") == (
        "Recorded a backup of 2026-01-01 12:00:00 UTC.\n"
    )
    newest = newest_backup()
    assert newest is not None
    assert (newest.host, newest.began_at, newest.place) == ("build-1", NOON, "/backup/1")
    assert record("--began", "2026-01-01T11:00:00Z").startswith("Nothing recorded: a newer backup")


@pytest.mark.parametrize("began", ["yesterday", "2026-01-01T12:00:00", "later"])
def test_time_that_is_none_or_has_not_come_is_refused(began: str) -> None:
    if began == "later":
        began = (timezone.now() + timedelta(hours=1)).isoformat()
    with pytest.raises(CommandError) as refused:
        record("--began", began)
    assert refused.value.returncode == 2
    assert newest_backup() is None

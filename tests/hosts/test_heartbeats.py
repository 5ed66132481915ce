"""A process reports that it is there, and its host ends the rows of those that are proven gone."""

from __future__ import annotations

import errno
import subprocess
import threading
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError

from executors_app.machine.process import identity
from sessions_app.hosts import heartbeats, intervals
from sessions_app.hosts.heartbeats import Heartbeat, describe_living
from sessions_app.hosts.models import Host, HostProcess, Role
from sessions_app.supervisor import leases
from tests.hosts.processes import reported

pytestmark = pytest.mark.django_db


def test_first_report_makes_the_host_and_the_process(settings: Any) -> None:
    settings.KANDEV_HOST_NAME = "build-1"
    heartbeat = Heartbeat(Role.WORKER)
    heartbeat.beat()
    heartbeat.beat()

    process = HostProcess.objects.get()
    assert (process.role, process.host.name, process.place) == ("worker", "build-1", identity.host_id())
    assert process.process.items() >= identity.identify_self().to_json().items()
    assert process.ended_at is None
    assert (process.free_bytes or 0) > 0
    assert 0 < (process.open_files or 0) <= (process.max_open_files or 0)


def test_two_roles_of_a_host_share_its_row() -> None:
    Heartbeat(Role.WORKER).beat()
    Heartbeat(Role.WEB).beat()
    assert Host.objects.count() == 1
    assert HostProcess.objects.count() == 2


def test_end_is_recorded_only_by_a_process_that_has_reported() -> None:
    heartbeat = Heartbeat(Role.WORKER)
    heartbeat.end()
    assert not HostProcess.objects.exists()
    heartbeat.beat()
    heartbeat.end()
    process = HostProcess.objects.get()
    assert process.ended_at is not None
    assert process.stopping_at is not None


def test_row_that_is_missing_is_made_again() -> None:
    heartbeat = Heartbeat(Role.WORKER)
    heartbeat.beat()
    HostProcess.objects.all().delete()
    heartbeat.beat()
    assert HostProcess.objects.count() == 1


def test_sign_of_life_ends_the_rows_of_processes_that_are_proven_gone() -> None:
    heartbeat = Heartbeat(Role.WORKER)
    heartbeat.beat()
    place = identity.host_id()
    process = subprocess.Popen(["sleep", "3600"])
    found = identity.identify(process.pid)
    assert found is not None
    killed = reported("worker", 0, place=place, process=found.to_json())
    elsewhere = reported("worker", 0, place="another", process=found.to_json())
    alive = reported("web", 0, place=place, process=identity.identify_self().to_json())
    process.kill()
    process.wait()

    heartbeat.beat()

    assert HostProcess.objects.get(id=killed.id).stopping_at is None, "it was not told to end"
    ended = set(HostProcess.objects.exclude(ended_at=None).values_list("id", flat=True))
    assert ended == {killed.id}
    assert {elsewhere.id, alive.id} <= set(HostProcess.objects.filter(ended_at=None).values_list("id", flat=True))


def test_report_is_due_again_only_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    heartbeat, beats = Heartbeat(Role.WORKER), list[int]()
    monkeypatch.setattr(heartbeat, "beat", lambda: beats.append(1))
    heartbeat.beat_if_due()
    heartbeat.beat_if_due()
    assert beats == [1]
    assert 1 < heartbeat.due_in <= intervals.beat_every()


@pytest.mark.parametrize("error", [OperationalError("gone"), OSError(errno.EMFILE, "gone")])
def test_report_that_fails_stops_no_process(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    heartbeat = Heartbeat(Role.WORKER)
    heartbeat.beat()

    def fail(*args: object) -> None:
        raise error

    monkeypatch.setattr("sessions_app.hosts.heartbeats.measure", fail)
    heartbeat.beat_if_due()
    assert heartbeat.due_in <= heartbeats.RETRY_AFTER, "it is tried again soon"
    heartbeat._next_at = 0.0
    heartbeat.beat_if_due()
    assert [record.getMessage() for record in caplog.records] == [f"no sign of life can be recorded: {error}"]


@pytest.mark.parametrize(
    ("seconds_ago", "ended", "is_living"),
    [(5, False, True), (5, True, False), (600, False, False)],
    ids=["reports", "has stopped", "is silent"],
)
def test_process_of_another_host_lives_while_it_reports(seconds_ago: float, ended: bool, is_living: bool) -> None:
    row = reported("worker", seconds_ago, name="build-2", process={"pid": 7})
    if ended:
        HostProcess.objects.update(ended_at=row.beat_at)
    assert describe_living() == (["worker on build-2 (pid 7)"] if is_living else [])


def test_killed_process_of_this_host_does_not_live() -> None:
    gone = identity.identify_self().to_json() | {"start_time": 1}
    reported("web", 5, place=identity.host_id(), process=gone)
    assert describe_living() == []


@pytest.mark.parametrize("arguments", [(), ("--check",)], ids=["make safe", "only check"])
def test_restored_database_is_left_alone_while_another_host_uses_it(arguments: tuple[str, ...]) -> None:
    reported("supervisor", 5, name="build-2", process={"pid": 7})
    with pytest.raises(CommandError, match=r"Kandev still runs: supervisor on build-2 \(pid 7\)") as refused:
        call_command("after_restore", *arguments)
    assert refused.value.returncode == 2


def test_signs_of_life_in_a_copy_of_a_moment_ago_do_not_keep_it_from_being_made_safe(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reported("supervisor", 5, name="build-2", process={"pid": 7})
    call_command("after_restore", "--restored")
    assert "0 sessions stopped" in capsys.readouterr().out


def test_check_passes_and_changes_nothing_when_nothing_runs(capsys: pytest.CaptureFixture[str]) -> None:
    reported("supervisor", 600, name="build-2")
    call_command("after_restore", "--check")
    assert capsys.readouterr().out == ""


def test_process_of_an_earlier_boot_of_this_machine_is_ended(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.KANDEV_HOST_NAME = "build-1"
    monkeypatch.setattr(identity, "machine_id", lambda: "0123")
    Heartbeat(Role.WEB).beat()
    host = Host.objects.get()
    own = identity.identify_self().to_json()

    def earlier(**changes: Any) -> HostProcess:
        row = reported("worker", 600, name="another", place="before", process=own | changes)
        HostProcess.objects.filter(id=row.id).update(host=host)
        return row

    before, container = earlier(boot_id="before"), earlier(pid_namespace="pid:[1]")
    elsewhere = reported("worker", 600, name="build-2", place="p2", process=own | {"boot_id": "b"})
    Heartbeat(Role.WORKER).beat()
    assert set(HostProcess.objects.exclude(ended_at=None).values_list("id", flat=True)) == {before.id}
    assert {container.id, elsewhere.id} <= set(HostProcess.objects.filter(ended_at=None).values_list("id", flat=True))


def test_boot_proves_nothing_of_a_machine_without_an_id(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.KANDEV_HOST_NAME = "build-1"
    monkeypatch.setattr(identity, "machine_id", lambda: "")
    reported("worker", 600, place="before", process=identity.identify_self().to_json() | {"boot_id": "before"})
    Heartbeat(Role.WORKER).beat()
    assert not HostProcess.objects.exclude(ended_at=None).exists()


def test_process_that_finishes_its_work_is_stopping() -> None:
    heartbeat = Heartbeat(Role.WORKER)
    heartbeat.beat_if_due()
    heartbeat.announce_stop()
    heartbeat.beat_if_due()
    first = HostProcess.objects.get().stopping_at
    assert first is not None
    heartbeat.beat()
    assert HostProcess.objects.get().stopping_at == first
    HostProcess.objects.all().delete()
    heartbeat.beat()
    assert HostProcess.objects.get().stopping_at is not None


def test_disk_that_hangs_holds_up_no_sign_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()

    def hang() -> int:
        answers.wait()
        return 7

    monkeypatch.setattr(heartbeats, "MEASURE_WITHIN", 0.01)
    monkeypatch.setattr(heartbeats, "_free_bytes", hang)
    heartbeat = Heartbeat(Role.SUPERVISOR)
    heartbeat.beat()
    assert HostProcess.objects.get().free_bytes is None
    before = threading.active_count()
    heartbeat.beat()
    assert threading.active_count() == before, "one thread waits, however often"
    answers.set()
    monkeypatch.setattr(heartbeats, "MEASURE_WITHIN", 60.0)
    heartbeat.beat()
    assert HostProcess.objects.get().free_bytes == 7


@pytest.mark.parametrize(
    ("machine", "name", "is_shared", "is_warned"),
    [
        ("", "", True, True),
        ("", "build-1", True, False),
        ("an id", "", True, False),
        ("", "", False, False),
    ],
)
def test_host_that_a_restart_makes_anew_is_warned_of(
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    machine: str,
    name: str,
    is_shared: bool,
    is_warned: bool,
) -> None:
    settings.KANDEV_HOST_NAME = name
    monkeypatch.setattr(identity, "machine_id", lambda: machine)
    monkeypatch.setattr(leases, "is_shared_database", lambda: is_shared)
    heartbeat = Heartbeat(Role.WORKER)
    heartbeat.beat()
    heartbeat.beat()
    assert caplog.text.count("set KANDEV_HOST_NAME to a name that stays") == int(is_warned)

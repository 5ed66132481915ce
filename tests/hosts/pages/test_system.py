"""The system page shows staff the hosts and what is down."""

from __future__ import annotations

import pytest
from django.test import Client
from django.utils import timezone

from sessions_app.maintenance.backups import record_backup
from sessions_app.models import DataSize, Supervisor
from tests.hosts.processes import reported
from tests.pages.world import World

pytestmark = pytest.mark.django_db


def staff_client(world: World) -> Client:
    world.ada.is_staff = True
    world.ada.save()
    client = Client()
    client.force_login(world.ada)
    return client


def test_system_page_shows_processes_and_what_is_down(world: World) -> None:
    reported("worker", 600)
    reported("web", 0, free_bytes=5 << 30, load=0.5, open_files=12, max_open_files=1024)
    text = staff_client(world).get("/system/").content.decode()
    assert "Schedules, mail and webhooks are paused" in text
    assert "build-1" in text
    assert "5.0\xa0GB free" in text
    assert "open files: 12 of 1024" in text


def test_workflows_page_says_when_no_worker_runs(world: World) -> None:
    client = staff_client(world)
    assert "No worker is running" not in client.get("/workflows/").content.decode()
    last = reported("worker", 600).beat_at
    text = client.get("/workflows/").content.decode()
    assert "No worker is running" in text
    assert f"{last:%Y-%m-%d %H:%M} UTC</time>" in text


def test_executors_page_names_the_host_of_a_supervisor(world: World) -> None:
    row = reported("supervisor", 0, name="build-7", place="p7")
    Supervisor.objects.create(boot_id="b", host_id="p7", started_at=row.started_at, beat_at=row.beat_at)
    assert "build-7" in staff_client(world).get("/executors/").content.decode()


def test_host_is_drained_and_put_back_on_the_page(world: World) -> None:
    host = reported("supervisor", 0).host
    session = world.running_session()
    session.executions.update(host_id="p1")
    client = staff_client(world)

    text = client.post(f"/system/hosts/{host.pk}/drain/", follow=True).content.decode()

    assert "build-1 is drained" in text
    assert "1 session still runs here." in text
    assert "No supervisor runs here" in text
    text = client.post(f"/system/hosts/{host.pk}/uncordon/", follow=True).content.decode()
    assert "build-1 is in service again." in text


def test_members_cannot_act_on_hosts(world: World) -> None:
    host = reported("supervisor", 0).host
    client = Client()
    client.force_login(world.ada)
    assert client.post(f"/system/hosts/{host.pk}/drain/").status_code == 403
    assert staff_client(world).post(f"/system/hosts/{host.pk}/explode/").status_code == 404


def test_system_page_shows_sizes_and_which_are_unknown(world: World) -> None:
    before = staff_client(world).get("/system/").content.decode()
    assert "Nothing has been measured yet" in before
    assert "No backup is recorded" in before
    record_backup("build-1", timezone.now(), "/backup/1")
    DataSize.objects.create(host="build-1", what="journals", bytes=3 << 20)
    DataSize.objects.create(host="build-1", what="worktrees")
    text = staff_client(world).get("/system/").content.decode()
    assert '<span class="meta">/backup/1</span>' in text
    assert "3.0\xa0MB" in text
    assert "unknown, because it could not be counted in time" in text


def test_system_page_shows_the_newest_backup_of_each_host(world: World) -> None:
    for name in ("build-1", "build-2"):
        reported("web", 5, name=name)
        record_backup(name, timezone.now(), f"/backup/{name}")
    text = staff_client(world).get("/system/").content.decode()
    assert "only in the backup of their host" in text
    assert text.index("/backup/build-1", text.index("only in the backup")) < text.rindex("/backup/build-2")

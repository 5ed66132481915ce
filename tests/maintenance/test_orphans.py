"""The report of orphans: what belongs to no session, and which executors could not be reached."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.test import Client

from executors_app.models import Executor
from executors_app.runtimes.local_docker.runtime import RUNTIME
from executors_app.runtimes.remote_docker.runtime import RUNTIME as FAR
from executors_app.wire.errors import RuntimeUnavailable
from executors_app.wire.executions import Orphan
from kandev.metrics import collect_metrics
from sessions_app.maintenance import chores
from sessions_app.models import Orphaned
from tests.maintenance.chores import run_chore
from tests.supervisor.rows import execution_of, running_session

pytestmark = pytest.mark.django_db
LOST = "11111111-1111-4111-8111-111111111111"


def orphans_are(monkeypatch: pytest.MonkeyPatch, *found: Orphan) -> None:
    async def answer(known: Collection[str], configs: Collection[Mapping[str, Any]]) -> list[Orphan]:
        return [one for one in found if one.execution_id not in known]

    monkeypatch.setattr(RUNTIME, "orphans", answer)


def test_orphans_are_stored_until_they_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    Executor.objects.create(name="Containers", runtime="local_docker")
    known = str(execution_of(running_session()).id)
    lost = Orphan("kandev-lost", "11111111-1111-4111-8111-111111111111", "running")
    orphans_are(monkeypatch, lost, Orphan("kandev-known", known, "running"), Orphan("odd", "no id", "exited"))
    done = run_chore("orphans")
    assert (done.removed, done.kept) == (0, 2)
    assert list(Orphaned.objects.values_list("runtime", "name")) == [
        ("local_docker", "kandev-lost"),
        ("local_docker", "odd"),
    ]
    first = Orphaned.objects.get(name="kandev-lost").first_seen_at
    assert ({"runtime": "local_docker"}, 2) in collect_metrics()["kandev_orphans"]
    orphans_are(monkeypatch, lost)
    run_chore("orphans")
    assert Orphaned.objects.get().first_seen_at == first
    orphans_are(monkeypatch)
    run_chore("orphans")
    assert not Orphaned.objects.exists()


def test_unreachable_runtime_keeps_its_last_report_and_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    Executor.objects.create(name="Containers", runtime="local_docker")
    Orphaned.objects.create(runtime="local_docker", name="kandev-lost")

    async def silence(known: Collection[str], configs: Collection[Mapping[str, Any]]) -> list[Orphan]:
        raise RuntimeUnavailable("The engine does not answer.")

    monkeypatch.setattr(RUNTIME, "orphans", silence)
    done = run_chore("orphans")
    assert (done.failed, done.said) == (
        True,
        ["Containers (local_docker) could not be reached: The engine does not answer."],
    )
    assert Orphaned.objects.exists()


def test_executors_page_shows_orphans_only_to_staff() -> None:
    Orphaned.objects.create(runtime="local_docker", name="kandev-lost", status="running")
    for is_staff in (True, False):
        client = Client()
        client.force_login(User.objects.create(username=f"somebody-{is_staff}", is_staff=is_staff))
        text = client.get("/executors/").content.decode()
        assert ("kandev-lost" in text) == is_staff


class Engines:
    """Fake engines by name: each has an orphan or fails with an error."""

    def __init__(self, **engines: Orphan | Exception):
        self.engines, self.removed = engines, list[tuple[str, list[str]]]()

    async def orphans(self, known: Collection[str], configs: Collection[Mapping[str, Any]]) -> list[Orphan]:
        found = [self.engines[config["at"]] for config in configs]
        for one in found:
            if isinstance(one, Exception):
                raise one
        return [one for one in found if isinstance(one, Orphan)]

    async def remove_orphan(self, orphan: Orphan, configs: Collection[Mapping[str, Any]]) -> bool:
        assert await self.orphans(set(), configs), "only runtimes that reported the orphan are asked"
        self.removed.append((orphan.id, [config["at"] for config in configs]))
        return True


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Engines:
    """Return engines that answer, are unreachable, and answer invalidly, with an executor for each."""
    away = RuntimeUnavailable("The engine does not answer.", for_staff="ssh: no route to build2")
    made = Engines(near=Orphan("kandev-lost", LOST, "running"), away=away, odd=KeyError("instances"))
    for name in made.engines:
        Executor.objects.create(name=name.title(), runtime="remote_docker", config={"at": name})
    monkeypatch.setattr(FAR, "orphans", made.orphans)
    monkeypatch.setattr(FAR, "remove_orphan", made.remove_orphan)
    monkeypatch.setattr(RUNTIME, "orphans", Engines().orphans)
    return made


def ask(*flags: str) -> tuple[int, str, str]:
    """Run ``manage.py orphans``; return exit status, output and errors."""
    out, errors = StringIO(), StringIO()
    try:
        call_command("orphans", *flags, stdout=out, stderr=errors)
    except CommandError as error:
        return error.returncode, out.getvalue(), f"{errors.getvalue()}{error}"
    return 0, out.getvalue(), errors.getvalue()


def test_unreachable_executor_hides_no_other_orphans(engines: Engines) -> None:
    status, output, errors = ask("--json")
    document = json.loads(output)
    assert status == 2
    assert [(one["executor"], one["id"]) for one in document["orphans"]] == [("Near", "kandev-lost")]
    assert [one["executor"] for one in document["not_asked"]] == ["Away", "Odd"]
    assert "Away (remote_docker) could not be reached: The engine does not answer. ssh: no route to build2" in errors


def test_orphan_is_removed_while_another_executor_is_unreachable(engines: Engines) -> None:
    assert ask("--remove", "kandev-lost")[0] == 0
    assert engines.removed == [("kandev-lost", ["near"])]
    status, _, errors = ask("--remove", "kandev-other")
    assert (status, "It may be on Away, Odd" in errors) == (1, True)


def test_chore_names_unreachable_executors_and_keeps_their_report(engines: Engines) -> None:
    Orphaned.objects.create(runtime="remote_docker", name="kandev-on-away")
    done = run_chore("orphans")
    assert (done.failed, done.kept, len(done.said)) == (True, 1, 2)
    assert set(Orphaned.objects.values_list("name", flat=True)) == {"kandev-lost", "kandev-on-away"}
    staff = Client()
    staff.force_login(User.objects.create(username="staff", is_staff=True))
    assert "Away (remote_docker) could not be reached" in staff.get("/executors/").content.decode()


def test_executors_that_share_an_engine_list_an_orphan_once(engines: Engines) -> None:
    Executor.objects.create(name="Near again", runtime="remote_docker", config={"at": "near"})
    assert [one.id for one in chores.find_orphans("remote_docker", FAR).found] == ["kandev-lost"]


def test_hanging_executor_is_given_up(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chores, "SEARCH_TIMEOUT", 0.05)

    async def hang(known: Collection[str], configs: Collection[Mapping[str, Any]]) -> list[Orphan]:
        if {"at": "away"} in configs:
            await asyncio.Event().wait()
        return await engines.orphans(known, configs)

    monkeypatch.setattr(FAR, "orphans", hang)
    report = chores.find_orphans("remote_docker", FAR)
    assert ([one.id for one in report.found], "did not answer within" in report.silent["Away"]) == (
        ["kandev-lost"],
        True,
    )

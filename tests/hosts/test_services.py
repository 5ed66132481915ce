"""What is down follows from signs of life and leases, and what has never reported is not called down."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from django.core.management import call_command
from django.utils import timezone

from executors_app.models import ExecutorRunning
from sessions_app.hosts import services
from sessions_app.hosts.models import HostProcess
from sessions_app.models import Intent
from tests.hosts.processes import attended, reported
from tests.pages.world import World

pytestmark = pytest.mark.django_db

LONG = 600.0


def agent_on(world: World, place: str) -> ExecutorRunning:
    execution = world.running_session().executions.get()
    ExecutorRunning.objects.filter(id=execution.id).update(host_id=place)
    return execution


def test_worker_that_has_never_reported_is_unknown() -> None:
    assert services.describe_down() == []
    assert not services.is_worker_down()


def test_worker_is_down_when_none_reports_any_more() -> None:
    reported("worker", LONG)
    reported("worker", 0, ended_at=timezone.now())
    assert services.describe_down() == services.roles_down() == ["worker"]
    reported("worker", 0)
    assert services.describe_down() == []


def test_host_with_agents_and_without_a_supervisor_is_named_to_staff_only(world: World) -> None:
    reported("supervisor", LONG, name="build-2", place="p2")
    agent_on(world, "p2")
    assert services.describe_down() == ["supervisor on build-2"]
    assert services.roles_down() == ["supervisor"]
    assert [report.is_unattended for report in services.list_hosts()] == [True]
    assert services.count_unattended() == 1
    attended("p2")
    assert services.describe_down() == services.roles_down() == []
    assert [report.is_unattended for report in services.list_hosts()] == [False]


def test_names_of_places_are_those_reported_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "MAX_PLACES", 2)
    reported("worker", 900, name="long-gone", place="p0")
    reported("worker", 600, name="build-1", place="p1")
    reported("worker", 0, name="build-2", place="p1")
    assert services.names_of_places() == {"p1": "build-2"}


def test_only_the_newest_stopped_processes_of_a_host_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "MAX_STOPPED", 1)
    reported("worker", 9000, ended_at=timezone.now())
    newest = reported("worker", 6000, ended_at=timezone.now())
    silent = reported("web", 3000)
    (report,) = services.list_hosts()
    assert [one.row.id for one in report.processes] == [silent.id, newest.id]


def test_host_that_is_long_dead_stays_among_many_that_report(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    monkeypatch.setattr(services, "MAX_HOSTS", 2)
    monkeypatch.setattr(services, "MAX_PROCESSES", 2)
    dead = reported("supervisor", 90_000, name="dead", place="p0")
    agent_on(world, "p0")
    reported("web", 80_000, name="without-agents", place="p9")
    silent = reported("worker", LONG, name="build-1", place="p1")
    for number in range(3):
        reported("worker", number, name="build-1", place="p1", ended_at=timezone.now())
        reported("worker", number, name="build-2", place="p2")

    reports = {report.host.name: report for report in services.list_hosts()}

    assert list(reports) == ["build-2", "build-1", "dead"]
    assert [report.is_unattended for report in reports.values()] == [False, False, True]
    assert [one.row.id for one in reports["dead"].processes] == [dead.id]
    assert silent.id in [one.row.id for one in reports["build-1"].processes]
    assert [len(report.processes) for report in reports.values()] == [2, 2, 1]


def test_agents_that_any_host_reaches_leave_none_unattended(world: World) -> None:
    execution = agent_on(world, "p2")
    ExecutorRunning.objects.filter(id=execution.id).update(runtime="remote_docker")
    assert services.describe_down() == []


def test_processes_are_counted_by_role_with_zeros() -> None:
    reported("worker", LONG)
    reported("worker", LONG, ended_at=timezone.now())
    counts = services.count_processes()
    assert (counts["worker", "silent"], counts["worker", "up"], counts["web", "up"]) == (1, 0, 0)


def test_command_lists_hosts_and_what_is_down(world: World) -> None:
    reported("worker", LONG)
    agent_on(world, "p1")
    output = StringIO()
    call_command("hosts", stdout=output)
    lines = output.getvalue().splitlines()
    assert lines[0] == "build-1  1 agent  NO SUPERVISOR"
    assert lines[1].split() == ["Worker", "silent", "10", "minutes", "ago", "1.1"]
    assert lines[2:] == ["down: worker", "down: supervisor on build-1", "1 host"]

    output = StringIO()
    call_command("hosts", "--json", stdout=output)
    document = json.loads(output.getvalue())
    assert document["down"] == ["worker", "supervisor on build-1"]
    (host,) = document["hosts"]
    assert (host["name"], host["sessions"], host["unattended"]) == ("build-1", 1, True)
    assert [(one["role"], one["state"]) for one in host["processes"]] == [("worker", "silent")]


def test_hosts_are_listed_with_a_constant_number_of_queries(
    django_assert_num_queries: pytest.FixtureRequest, world: World
) -> None:
    for number in range(3):
        reported("worker", 0, name=f"build-{number}", place=f"p{number}")
        agent_on(world, f"p{number}")
    with django_assert_num_queries(5):  # type: ignore[operator]
        assert len(services.list_hosts()) == 3


def test_oldest_request_to_sessions_of_a_host_is_that_which_is_open(world: World) -> None:
    reported("supervisor", LONG)
    session = world.session()
    session.executions.update(host_id="p1")
    oldest = session.intents.get()
    Intent.objects.create(session=session, kind="stop")
    (report,) = services.list_hosts()
    assert report.oldest_request_at == oldest.created_at
    session.intents.update(done_at=timezone.now())
    (report,) = services.list_hosts()
    assert report.oldest_request_at is None


def test_figures_of_a_host_are_those_of_processes_that_are_up() -> None:
    reported("web", 1, open_files=3)
    fullest = reported("web", 2, open_files=9)
    reported("worker", LONG, open_files=99)
    (report,) = services.list_hosts()
    assert report.fullest_processes() == {"web": fullest}
    HostProcess.objects.update(ended_at=timezone.now())
    (report,) = services.list_hosts()
    assert (report.newest_up, report.fullest_processes()) == (None, {})

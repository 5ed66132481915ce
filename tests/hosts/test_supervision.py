"""A host with agents that only its own supervisor reaches is unattended without one, and everything says so."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from executors_app.models import ExecutorRunning
from executors_app.plugins import runtimes
from sessions_app.board.services.board import session_rows
from sessions_app.hosts.models import Host
from sessions_app.hosts.supervision import Supervision, bound_runtimes, place_of
from sessions_app.models import Intent, Supervisor, TaskSession
from sessions_app.pages.labels import agent_label
from sessions_app.sessions.rules.situations import status_label
from sessions_app.sessions.services.status import read_session
from sessions_app.supervisor import leases
from tests.hosts.processes import attended, reported
from tests.pages.world import World

pytestmark = pytest.mark.django_db

LONG = 600.0


@pytest.fixture(autouse=True)
def shared_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "is_shared_database", lambda: True)


def nothing_reported() -> None:
    pass


def another_host_reported() -> None:
    reported("supervisor", LONG, name="build-9", place="p9")


def supervisor_is_silent() -> None:
    reported("supervisor", LONG)
    attended("p1", seconds_ago=LONG)


def supervisor_of_another_host_is_alive() -> None:
    reported("supervisor", LONG)
    reported("supervisor", 0, name="build-2", place="p2")
    attended("p2")


def supervisor_is_alive() -> None:
    reported("supervisor", LONG)
    attended("p1")


def supervisor_of_a_later_boot_is_alive() -> None:
    reported("supervisor", LONG)
    reported("web", 0, place="p1-later")
    attended("p1-later")


def supervisor_has_just_ended() -> None:
    reported("supervisor", 5, ended_at=timezone.now(), stopping_at=timezone.now())


def supervisor_was_killed_and_its_host_has_found_it() -> None:
    reported("supervisor", 5, ended_at=timezone.now())


def supervisor_ended_long_ago() -> None:
    at = timezone.now() - timedelta(seconds=LONG)
    reported("supervisor", LONG, ended_at=at, stopping_at=at)


def web_has_just_ended() -> None:
    reported("supervisor", LONG)
    reported("web", 5, ended_at=timezone.now())


def machine_was_renamed() -> None:
    reported("supervisor", LONG)
    reported("supervisor", 5, name="build-one", place="p2")
    Host.objects.update(machine="m1")
    attended("p2")


def copy_of_the_machine_is_attended() -> None:
    reported("supervisor", 2 * LONG, name="build-2", place="p2")
    reported("supervisor", LONG)
    Host.objects.update(machine="m1")
    attended("p2")


SITUATIONS: list[tuple[Callable[[], None], str]] = [
    (nothing_reported, ""),
    (another_host_reported, ""),
    (supervisor_is_silent, "build-1"),
    (supervisor_of_another_host_is_alive, "build-1"),
    (supervisor_is_alive, ""),
    (supervisor_of_a_later_boot_is_alive, ""),
    (supervisor_has_just_ended, ""),
    (supervisor_was_killed_and_its_host_has_found_it, "build-1"),
    (supervisor_ended_long_ago, "build-1"),
    (web_has_just_ended, "build-1"),
    (machine_was_renamed, ""),
    (copy_of_the_machine_is_attended, "build-1"),
]


@pytest.mark.parametrize(("arrange", "host"), SITUATIONS, ids=[arrange.__name__ for arrange, _ in SITUATIONS])
def test_host_is_unattended_only_where_that_is_known(arrange: Callable[[], None], host: str) -> None:
    arrange()
    assert Supervision().name_unattended(["p1"]).get("p1", "") == host


def test_newest_name_of_a_place_counts() -> None:
    reported("web", 900, name="old-name")
    reported("web", LONG, name="new-name")
    assert Supervision().name_unattended(["p1"]) == {"p1": "new-name"}


def test_only_host_is_attended_by_its_supervisor_whatever_it_was_called(monkeypatch: pytest.MonkeyPatch) -> None:
    reported("supervisor", LONG, name="a-container")
    reported("supervisor", 0, name="the-next-container", place="p2")
    monkeypatch.setattr(leases, "is_shared_database", lambda: False)
    assert Supervision().name_unattended(["p1"]) == {"p1": "a-container"}, "no supervisor is alive"
    attended("p2")
    assert Supervision().name_unattended(["p1"]) == {}


def test_any_number_of_places_takes_two_queries(django_assert_num_queries: Any) -> None:
    for number in range(5):
        reported("supervisor", LONG, name=f"build-{number}", place=f"p{number}")
    attended("p0")
    supervision = Supervision()
    with django_assert_num_queries(2):
        assert sorted(supervision.name_unattended(["p0", "p1", "p2", "p3", "p4", ""])) == ["p1", "p2", "p3", "p4"]
    with django_assert_num_queries(0):
        assert supervision.name_unattended(["p0", ""]) == {}


def test_runtimes_of_this_machine_are_bound_to_their_host() -> None:
    assert set(bound_runtimes()) == {"local_standalone", "local_docker"}
    assert set(bound_runtimes()) < set(runtimes())


def test_execution_of_an_unknown_runtime_is_bound_to_no_host() -> None:
    assert place_of(ExecutorRunning(runtime="of_a_plugin", host_id="p1")) == ""
    assert place_of(None) == ""


def session_on(world: World, place: str) -> TaskSession:
    session = world.running_session()
    session.executions.update(host_id=place)
    Supervisor.objects.all().delete()
    return TaskSession.objects.get(id=session.id)


def row_of(world: World, session: TaskSession) -> Any:
    return session_rows([TaskSession.objects.get(id=session.id)], world.ada)[session.id]


def test_page_list_and_status_call_a_session_of_an_unattended_host_unreachable(world: World) -> None:
    session = session_on(world, "p1")
    supervisor_of_another_host_is_alive()

    reading = read_session(session)
    status = reading.status
    assert (status.unattended_host, status.error_code) == ("build-1", "unreachable")
    assert status.error_message == "The host of this session, build-1, has no supervisor."
    assert status.stillness is not None
    assert status.stillness["reason"] == "host_unattended"
    assert status.stillness["text"].startswith("The host of this session, build-1, has no supervisor.")
    for facts in (reading.facts, row_of(world, session).facts):
        assert status_label(facts).text == agent_label(facts).text == "Unreachable"


def test_session_of_an_attended_host_is_as_before(world: World) -> None:
    session = session_on(world, "p1")
    supervisor_is_alive()
    status = read_session(session).status
    assert (status.unattended_host, status.error_code) == ("", "")
    assert row_of(world, session).facts.unattended_host == ""


def test_stopped_session_needs_its_host_only_for_a_start(world: World) -> None:
    session = session_on(world, "p1")
    supervisor_is_silent()
    session.executions.update(status="stopped")
    TaskSession.objects.filter(id=session.id).update(state="WAITING_FOR_INPUT", launch_id="")
    session = TaskSession.objects.get(id=session.id)
    assert read_session(session).status.unattended_host == ""

    Intent.objects.create(session=session, kind="start")
    session = TaskSession.objects.get(id=session.id)
    assert read_session(session).status.unattended_host == "build-1"
    assert row_of(world, session).facts.unattended_host == "build-1"


def test_status_of_an_unattended_session_takes_one_query_more(world: World) -> None:
    session = session_on(world, "p1")
    supervisor_is_alive()
    with CaptureQueriesContext(connection) as before:
        read_session(TaskSession.objects.get(id=session.id))
    Supervisor.objects.all().delete()
    with CaptureQueriesContext(connection) as after:
        assert read_session(TaskSession.objects.get(id=session.id)).status.unattended_host == "build-1"
    assert len(after) == len(before) + 1


def test_damage_of_a_session_is_said_first(world: World) -> None:
    session = session_on(world, "p1")
    supervisor_is_silent()
    TaskSession.objects.filter(id=session.id).update(work_state="odd")
    assert read_session(TaskSession.objects.get(id=session.id)).status.error_code == "damaged_row"

"""Sessions of a pool start once each, in order, on an executor that fits, whoever claims the last place."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from threading import Barrier
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection

from executors_app.models import AgentProfile, Executor
from sessions_app.board.services import tasks
from sessions_app.models import HostMaintenance, Intent, Repository, Supervisor, Task, TaskSession
from sessions_app.placement.start_claims import note_wait
from sessions_app.sessions.services import intents
from sessions_app.sessions.services.status import session_status
from sessions_app.starts import claims
from tests.placement.hosts import act_on, add_supervisor, asks, open_start
from tests.supervisor.rows import (
    change,
    execution_of,
    fresh,
    last_payload,
    make_task,
    make_user,
)
from tests.waiting import PATIENCE

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def pool() -> dict[str, Executor]:
    """Two executors of the pool "build", with one place each."""
    values: dict[str, Any] = {"runtime": "remote", "pool": "build", "max_live": 1}
    return {name: Executor.objects.create(name=name, **values) for name in ("a", "b")}


@pytest.fixture
def task() -> Task:
    return make_task()


def new_session(task: Task, executor: Executor, pool: str = "build") -> TaskSession:
    profile, _ = AgentProfile.objects.get_or_create(name="Demo", agent_type="demo")
    return tasks.create_session(make_user(), task, profile, executor, executor_pool=pool)


def claim(session: TaskSession, boot_id: str = "me") -> bool:
    return claims.claim_start(session.id, open_start(session).id, boot_id, running_launch_id=None) is not None


def end(session: TaskSession) -> None:
    """End the execution of a session, so that its place is free."""
    change(execution_of(session), status="stopped", status_reason="stopped")


def waits(session: TaskSession) -> tuple[str, int] | None:
    found = session_status(fresh(session))["start_wait"]
    return found and (found["reason"], found["before"])


def test_session_is_placed_with_its_reason(pool: dict[str, Executor], task: Task) -> None:
    change(pool["b"], max_live=3)
    session = new_session(task, pool["a"])
    assert claim(session)
    row = fresh(session)
    assert (row.executor, execution_of(row).executor) == (pool["b"], pool["b"])
    assert row.placement_reason == "Placed on b: 0 of 3 places used."
    assert session_status(row)["placement_reason"] == row.placement_reason
    placed = last_payload(session, "session.placed")
    assert (placed["pool"], placed["executor"], placed["reason"]) == ("build", "b", row.placement_reason)


def test_chosen_executor_is_not_changed(pool: dict[str, Executor], task: Task) -> None:
    change(pool["b"], max_live=3)
    session = new_session(task, pool["a"], pool="")
    assert claim(session)
    assert fresh(session).executor == pool["a"]
    assert fresh(session).placement_reason == ""


def test_session_that_was_launched_stays_where_it_is(pool: dict[str, Executor], task: Task) -> None:
    session = new_session(task, pool["a"])
    assert claim(session)
    end(session)
    open_start(session).delete()
    other = new_session(task, pool["a"])
    placed = fresh(session).executor
    change(execution_of(other), executor=placed, status="ready", status_reason="")
    Intent.objects.create(session=session, kind="start")
    assert not claim(session)
    assert fresh(session).executor == placed


def test_full_pool_starts_the_next_one_once_and_in_order(pool: dict[str, Executor], task: Task) -> None:
    first, second, third, fourth = (new_session(task, pool["a"]) for _ in range(4))
    assert claim(first)
    assert claim(second)
    assert {fresh(first).executor, fresh(second).executor} == set(pool.values())
    assert not claim(third)
    assert not claim(fourth)
    assert (waits(third), waits(fourth)) == (("capacity", 0), ("capacity", 1))
    end(second)
    assert not claim(fourth)
    assert claim(third)
    assert fresh(third).executor == fresh(second).executor
    assert not claim(fourth)
    assert waits(fourth) == ("capacity", 0)


@pytest.mark.parametrize(
    "leave",
    [
        lambda session: intents.request_stop(session.id, make_user()),
        lambda session: intents.request_close(session.id, make_user(), "cancelled"),
    ],
)
def test_session_that_is_stopped_leaves_the_queue(
    pool: dict[str, Executor], task: Task, leave: Callable[[TaskSession], None]
) -> None:
    running, other, waiting, last = (new_session(task, pool["a"]) for _ in range(4))
    assert claim(running)
    assert claim(other)
    assert not claim(waiting)
    assert not claim(last)
    leave(waiting)
    assert waits(last) == ("capacity", 0)
    end(running)
    assert claim(last)


def test_one_that_waits_for_labels_does_not_hold_up_others(pool: dict[str, Executor], task: Task) -> None:
    change(pool["b"], labels="gpu")
    with_labels = Repository.objects.create(team=task.team, path="/srv/gpu", name="gpu", executor_labels="gpu")
    gpu_task = make_task(repository=with_labels)
    full = new_session(gpu_task, pool["a"])
    assert claim(full)
    assert fresh(full).executor == pool["b"]
    waiting = new_session(gpu_task, pool["a"])
    assert not claim(waiting)
    assert claim(new_session(task, pool["a"], pool=""))
    assert waits(waiting) == ("capacity", 0)
    end(full)
    assert claim(waiting)
    assert fresh(waiting).placement_reason == "Placed on b: 0 of 1 place used, has the labels gpu."


def test_pool_without_the_wanted_labels_says_so(pool: dict[str, Executor], task: Task) -> None:
    Repository.objects.update(executor_labels="gpu")
    session = new_session(task, pool["a"])
    assert not claim(session)
    wait = session_status(fresh(session))["start_wait"]
    assert (wait["reason"], wait["text"]) == ("placement", "No executor of the pool build has the labels gpu.")
    change(pool["a"], labels="gpu, large")
    assert claim(session)


def test_session_with_a_chosen_executor_waits_behind_earlier_ones_of_the_pool(
    pool: dict[str, Executor], task: Task
) -> None:
    first, second = new_session(task, pool["a"]), new_session(task, pool["a"])
    assert claim(first)
    assert claim(second)
    early, late = new_session(task, pool["a"]), new_session(task, pool["a"], pool="")
    assert not claim(early)
    assert not claim(late)
    on_a = next(one for one in (first, second) if fresh(one).executor == pool["a"])
    end(on_a)
    assert not claim(late)
    assert claim(early)


def test_execution_that_may_run_uses_its_place(pool: dict[str, Executor], task: Task) -> None:
    change(pool["b"], disabled_at=task.created_at)
    silent, session = new_session(task, pool["a"]), new_session(task, pool["a"])
    change(execution_of(silent), status="error", error_code="unreachable", status_reason="")
    assert not claim(session)
    change(execution_of(silent), error_code="agentctl_died")
    assert claim(session)


def test_local_executors_of_a_pool_are_claimed_by_their_hosts(
    monkeypatch: pytest.MonkeyPatch, pool: dict[str, Executor], task: Task
) -> None:
    for name, executor in pool.items():
        change(executor, runtime="local_standalone", host=add_supervisor(name))
    session = new_session(task, pool["a"])
    assert asks(monkeypatch, "a", session, has_repository=False)
    assert not claim(session, "a")
    assert asks(monkeypatch, "b", session, has_repository=True)
    assert claim(session, "b")
    assert fresh(session).placement_reason == "Placed on b: 0 of 1 place used, has the repository."
    assert execution_of(session).host_id == "b"


def test_local_pool_without_supervisors_of_its_hosts_says_so(
    monkeypatch: pytest.MonkeyPatch, pool: dict[str, Executor], task: Task
) -> None:
    for name, executor in pool.items():
        change(executor, runtime="local_standalone", host=add_supervisor(name))
    Supervisor.objects.all().delete()
    add_supervisor("c")
    session = new_session(task, pool["a"])
    act_on(monkeypatch, "c")
    assert not claim(session, "c")
    assert session_status(fresh(session))["start_wait"]["text"] == "No host of the pool build has a supervisor."


def test_two_supervisors_that_want_the_last_place_start_one_session(pool: dict[str, Executor], task: Task) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has one supervisor")
    change(pool["b"], disabled_at=task.created_at)
    sessions = [new_session(task, pool["a"]) for _ in range(2)]
    together = Barrier(2)

    def try_one(number: int) -> bool:
        try:
            together.wait(PATIENCE)
            return claim(sessions[number], f"boot-{number}")
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as threads:
        won = list(threads.map(try_one, range(2)))
    assert sorted(won) == [False, True]
    assert waits(sessions[won.index(False)]) == ("capacity", 0)


def test_command_lists_what_waits_with_position_and_cause(pool: dict[str, Executor], task: Task) -> None:
    change(pool["b"], disabled_at=task.created_at)
    first, second, third = (new_session(task, pool["a"]) for _ in range(3))
    assert claim(first)
    assert not claim(second)
    assert not claim(third)
    stuck = new_session(task, pool["a"], pool="")
    note_wait(open_start(stuck).id, "No host has it.")
    output = StringIO()
    call_command("start_queue", stdout=output)
    assert output.getvalue().splitlines() == [
        f"{second.id}  pool build  0 before it  capacity",
        f"{third.id}  pool build  1 before it  capacity",
        f"{stuck.id}  a  0 before it  No host has it.",
        "3 starts wait",
    ]
    output = StringIO()
    call_command("start_queue", "--json", stdout=output)
    assert [row["before"] for row in json.loads(output.getvalue())["starts"]] == [0, 1, 0]


def test_cordoned_host_of_a_pool_gets_no_new_session(
    monkeypatch: pytest.MonkeyPatch, pool: dict[str, Executor], task: Task
) -> None:
    hosts = {name: add_supervisor(name) for name in pool}
    for name, executor in pool.items():
        change(executor, runtime="local_standalone", host=hosts[name])
    HostMaintenance.objects.create(host=hosts["a"], cordoned_at=task.created_at)
    session = new_session(task, pool["a"])
    assert asks(monkeypatch, "b", session, has_repository=True)
    assert claim(session, "b")
    assert fresh(session).executor == pool["b"]
    other = new_session(task, pool["a"])
    assert not claim(other, "b")
    assert waits(other) == ("capacity", 0)
    change(pool["b"], disabled_at=task.created_at)
    assert not claim(other, "b")
    wait = session_status(fresh(other))["start_wait"]
    assert wait["text"] == "The hosts of the pool build take no new sessions: they are cordoned."


def test_host_that_was_lost_and_cannot_clean_up_does_not_hold_up_its_pool(
    monkeypatch: pytest.MonkeyPatch, pool: dict[str, Executor], task: Task
) -> None:
    hosts = {name: add_supervisor(name) for name in pool}
    for name, executor in pool.items():
        change(executor, runtime="local_standalone", host=hosts[name])
    HostMaintenance.objects.create(host=hosts["a"], lost_at=task.created_at)
    session = new_session(task, pool["a"])
    act_on(monkeypatch, "b")
    assert claim(session, "b")
    assert fresh(session).executor == pool["b"]


def test_session_of_a_lost_host_gets_another_executor_of_its_pool(
    monkeypatch: pytest.MonkeyPatch, pool: dict[str, Executor], task: Task
) -> None:
    for name, executor in pool.items():
        change(executor, runtime="local_standalone", host=add_supervisor(name))
    session = new_session(task, pool["a"])
    change(execution_of(session), status="stopped", status_reason="host_lost")
    Supervisor.objects.filter(boot_id="a").delete()
    assert asks(monkeypatch, "b", session, has_repository=True)
    assert claim(session, "b")
    assert (fresh(session).executor, execution_of(session).executor) == (pool["b"], pool["b"])


def test_session_that_was_launched_is_left_to_the_host_of_its_executor(
    monkeypatch: pytest.MonkeyPatch, pool: dict[str, Executor], task: Task
) -> None:
    for name, executor in pool.items():
        change(executor, runtime="remote_docker", host=add_supervisor(name))
    session = new_session(task, pool["a"])
    change(execution_of(session), status="stopped", status_reason="stopped", host_id="a")
    assert not asks(monkeypatch, "b", session, has_repository=True)
    assert asks(monkeypatch, "a", session, has_repository=True)

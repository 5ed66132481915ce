"""Restarting the control plane from its page: who may, where, and how progress is shown."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from executors_app.machine.process import identity
from sessions_app.models import Supervisor, Task, TaskSession
from sessions_app.recovery.services import restarts
from sessions_app.recovery.services.restarts import DEMO_TASK
from tests.pages.world import World, make_sweep, path_of


@pytest.fixture(autouse=True)
def data(settings: Any, tmp_path: Path) -> Path:
    settings.KANDEV_DATA_DIR, settings.KANDEV_EMBEDDED, settings.KANDEV_PUBLIC = tmp_path, True, False
    return tmp_path


def fake_serve(data: Path, pid: int | None = None, **values: Any) -> None:
    """Make this process look like a child of ``manage.py serve`` on the loopback address."""
    keeper = identity.identify(pid or os.getppid())
    assert keeper
    (data / "serve.json").write_text(json.dumps({"keeper": keeper.to_json(), "loopback": True, **values}))


def test_restart_requested_by_staff_is_carried_out_once(staff: Client, world: World, data: Path) -> None:
    orders = restarts.RestartOrders(loopback=True)
    fake_serve(data)
    assert "Restart Kandev now</button>" in staff.get("/restart/").text
    assert staff.post("/restart/").status_code == 302
    assert "Restarting…" in staff.get("/restart/").text
    assert not orders.due(100.0), "the request is answered first"
    assert not orders.due(100.0 + restarts.KILL_DELAY / 2)
    assert orders.due(100.0 + restarts.KILL_DELAY)
    orders.done(["web", "supervisor", "worker"])
    assert not orders.due(200.0)
    ordered = restarts.last_ordered()
    assert ordered is not None
    assert (ordered.by, list(ordered.killed)) == ("ada", ["web", "supervisor", "worker"])


def test_request_to_an_earlier_server_is_discarded(world: World, data: Path) -> None:
    restarts.order_restart(world.ada)
    orders = restarts.RestartOrders(loopback=True)
    assert not any(orders.due(now) for now in (1.0, 100.0))
    assert not restarts.is_ordered()


def fake_serve_with(**setting: bool) -> Callable[[Path, Any], None]:
    """Return a function that makes this process look like a child of another kind of server."""

    def prepare(data: Path, settings: Any) -> None:
        fake_serve(data)
        for name, value in setting.items():
            setattr(settings, name, value)

    return prepare


def damage(data: Path, settings: Any) -> None:
    (data / "serve.json").write_text("{")


WHERE: dict[str, Callable[[Path, Any], None]] = {
    "no keeper": lambda data, settings: None,
    "the keeper listens on a public address": lambda data, settings: fake_serve(data, loopback=False),
    "another process is the keeper": lambda data, settings: fake_serve(data, pid=os.getpid()),
    "the keeper's file is damaged": damage,
    "the database is not the embedded one": fake_serve_with(KANDEV_EMBEDDED=False),
    "the installation is public": fake_serve_with(KANDEV_PUBLIC=True),
}


@pytest.mark.parametrize("where", WHERE)
def test_restart_is_unavailable_where_it_could_not_be_carried_out(
    where: str, staff: Client, world: World, data: Path, settings: Any
) -> None:
    WHERE[where](data, settings)
    assert staff.post("/restart/").status_code == 403
    assert "Not available here" in staff.get("/restart/").text
    assert not restarts.is_ordered()


def test_restart_requires_staff_and_a_csrf_token(ada: Client, world: World, data: Path) -> None:
    fake_serve(data)
    assert ada.post("/restart/").status_code == 403
    world.ada.is_staff = True
    world.ada.save()
    guarded = Client(enforce_csrf_checks=True)
    guarded.force_login(world.ada)
    assert guarded.post("/restart/").status_code == 403
    assert not restarts.is_ordered()


def test_restart_progress_is_reported_step_by_step(staff: Client, bob: Client, world: World, data: Path) -> None:
    session = world.running_session()
    killed = timezone.now() - timedelta(seconds=5)
    done = {"by": "ada", "killed_at": killed.isoformat(), "killed": ["web", "supervisor", "worker"]}
    (data / "restarted.json").write_text(json.dumps(done))
    Supervisor.objects.update(started_at=killed - timedelta(hours=1))
    assert "A new supervisor is starting" in staff.get("/restart/live/").json()["parts"]["restart"]
    up = Supervisor.objects.create(
        boot_id="new", host_id="h", started_at=killed + timedelta(seconds=1.5), beat_at=timezone.now()
    )
    state = staff.get("/restart/live/").json()["parts"]["restart"]
    assert "1.5 s after the kill" in state
    assert "It checks every session" in state
    up.swept_at = killed + timedelta(seconds=2)
    up.save()
    sweep = make_sweep(session)
    session.receipts.create(kind="reattached", verified="same_process")
    state = staff.get("/restart/live/").json()["parts"]["restart"]
    assert "1 agent kept running." in state
    assert f'href="/sweeps/{sweep.id}/"' in state
    assert f"{path_of(session)}timeline/" in state
    assert path_of(session) not in bob.get("/restart/").text


def test_first_start_after_the_restart_is_not_called_a_loss(staff: Client, world: World, data: Path) -> None:
    killed = timezone.now() - timedelta(seconds=5)
    done = {"by": "ada", "killed_at": killed.isoformat(), "killed": ["web", "supervisor", "worker"]}
    (data / "restarted.json").write_text(json.dumps(done))
    world.session().receipts.create(kind="fresh")
    state = staff.get("/restart/live/").json()["parts"]["restart"]
    assert "First start" in state
    assert "does not know the earlier conversation" not in state


def test_first_steps_offer_a_restart_and_then_disappear(staff: Client, world: World, data: Path) -> None:
    assert "Try it: restart Kandev" not in staff.get("/").text
    fake_serve(data)
    assert "Try it: restart Kandev" not in staff.get("/").text, "without the demo, no restart is offered"
    session = world.running_session()
    task = session.task
    task.title = DEMO_TASK
    task.save()
    page = staff.get("/").text
    assert "The agent has started" in page
    session.runs.update(ended_at=timezone.now(), state="completed")
    assert "The agent is not counting any more. To try it, first <a" in staff.get("/").text
    assert 'formaction="/restart/"' in page
    restarts.RestartOrders(loopback=True).done(["web"])
    fake_serve(data)
    assert f"{path_of(session)}timeline/" in staff.get("/").text
    session.receipts.create(kind="reattached", verified="same_process")
    assert "Try it: restart Kandev" not in staff.get("/").text


def demo_session(world: World, data: Path) -> TaskSession:
    fake_serve(data)
    session = world.running_session()
    Task.objects.filter(id=session.task_id).update(title=DEMO_TASK)
    return session


def test_first_steps_end_with_a_restart_that_nobody_ordered(staff: Client, world: World, data: Path) -> None:
    session = demo_session(world, data)
    assert "Try it: restart Kandev" in staff.get("/").text
    session.receipts.create(kind="reattached", verified="same_process")
    assert "Try it: restart Kandev" not in staff.get("/").text


def test_first_steps_are_hidden_on_request(staff: Client, world: World, data: Path) -> None:
    demo_session(world, data)
    assert 'formaction="/first-steps/hide/"' in staff.get("/").text
    answer = staff.post("/first-steps/hide/")
    assert (answer.status_code, answer["Location"]) == (302, "/")
    page = staff.get("/").text
    assert "Try it: restart Kandev" not in page
    assert 'href="/?first-steps=1"' in page
    assert 'href="/?first-steps=1"' in staff.get("/help/").text
    assert "Try it: restart Kandev" in staff.get("/?first-steps=1").text
    assert "Try it: restart Kandev" in staff.get("/").text, "they are not hidden any more"


@pytest.mark.parametrize("kind", ["resumed", "loaded", "injected"])
def test_first_steps_end_with_a_restart_in_which_the_agent_ended_too(
    kind: str, staff: Client, world: World, data: Path
) -> None:
    session = demo_session(world, data)
    session.receipts.create(kind=kind)  # of a resume by a user
    make_sweep(session)
    assert "Try it: restart Kandev" in staff.get("/").text
    session.receipts.create(kind=kind)
    assert "Try it: restart Kandev" not in staff.get("/").text
    page = staff.get("/?first-steps=1").text
    assert "You have completed these steps." in page
    assert f"{path_of(session)}timeline/" in page


def test_first_steps_offer_another_restart_if_no_agent_worked_in_the_last_one(
    staff: Client, world: World, data: Path
) -> None:
    session = demo_session(world, data)
    session.runs.update(ended_at=timezone.now(), state="completed")
    restarts.RestartOrders(loopback=True).done(["web"])
    fake_serve(data)
    page = staff.get("/").text
    assert "Kandev has restarted, but no agent was reconnected yet" in page
    assert 'formaction="/restart/"' in page


@pytest.mark.parametrize("state", ["COMPLETED", "CANCELLED", "FAILED", "ERROR"])
def test_first_steps_offer_another_session_for_one_that_has_ended(
    state: str, staff: Client, world: World, data: Path
) -> None:
    session = demo_session(world, data)
    Task.objects.filter(id=session.task_id).update(description="Count.")
    TaskSession.objects.filter(id=session.id).update(state=state)
    assert 'name="again" value="1">Start another session' in staff.get("/").text
    assert staff.post(f"/tasks/{session.task_id}/start/", {"again": "1"}).status_code == 302
    assert TaskSession.objects.latest("created_at").prompts.get().text == "Count."


def test_first_steps_without_their_task_say_what_they_need(staff: Client, world: World, data: Path) -> None:
    session = demo_session(world, data)
    Task.objects.filter(id=session.task_id).update(state="DONE")
    assert "The first steps need the task" in staff.get("/?first-steps=1").text


@pytest.mark.parametrize("state", ["DONE", "CANCELLED"])
def test_first_steps_offer_no_task_that_has_ended(state: str, staff: Client, world: World, data: Path) -> None:
    session = demo_session(world, data)
    Task.objects.filter(id=session.task_id).update(state=state)
    assert "Try it: restart Kandev" not in staff.get("/").text


def test_first_steps_say_that_the_agent_could_not_start(staff: Client, world: World, data: Path) -> None:
    session = demo_session(world, data)
    session.runs.all().delete()
    TaskSession.objects.filter(id=session.id).update(state="ERROR")
    page = staff.get("/").text
    assert f'<a href="{path_of(session)}">The agent could not start</a>' in page
    assert "The agent is starting" not in page

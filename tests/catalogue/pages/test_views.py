"""The executors page."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from executors_app import capacity
from executors_app.machine.process import identity
from executors_app.models import Executor, ExecutorRunning
from sessions_app.accounts.models import TeamRole
from sessions_app.models import Supervisor, TaskSession
from tests.pages.world import World, path_of

pytestmark = pytest.mark.any_database


def test_page_without_executors_says_so(ada: Client, world: World) -> None:
    Executor.objects.all().delete()
    html = ada.get("/executors/").text
    assert "There is no executor yet" in html
    assert "No agents of your teams are running" in html


def test_executor_shows_its_runtime_isolation_and_load(ada: Client, bob: Client, world: World) -> None:
    world.running_session()
    Executor.objects.update(max_live=3)
    for reader in (ada, bob):
        html = reader.get("/executors/").text
        assert "On this machine" in html
        assert "Runs unsandboxed on this machine" in html
        assert "1 live session of at most 3" in html


def test_executor_without_its_own_limit_shows_that_of_the_memory(
    ada: Client, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.running_session()
    monkeypatch.setattr(capacity, "machine_memory", lambda: 0)
    html = ada.get("/executors/").text
    assert f"1 live session of at most {capacity.MIN_AGENTS}, as this machine has memory for" in html
    assert "Full" not in html
    monkeypatch.setattr(capacity, "MIN_AGENTS", 1)
    assert ">Full<" in ada.get("/executors/").text


def test_executors_that_share_the_memory_share_its_limit(
    ada: Client, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.running_session()
    Executor.objects.create(name="Second", runtime="local_standalone")
    monkeypatch.setattr(capacity, "machine_memory", lambda: 0)
    html = ada.get("/executors/").text
    assert "0 live sessions; at most 8 on all executors of this machine together" in html
    assert 'aria-label="Second: 1 of 8"' in html


def test_workspace_without_an_agent_takes_no_room(ada: Client, world: World) -> None:
    session = world.running_session()
    Executor.objects.update(max_live=1)
    assert ">Full<" in ada.get("/executors/").text
    TaskSession.objects.filter(id=session.id).update(has_agent=False)
    html = ada.get("/executors/").text
    assert "1 live session (1 without an agent) of at most 1" in html
    assert ">Full<" not in html


def test_executor_with_an_unknown_runtime_is_still_listed(ada: Client, world: World) -> None:
    Executor.objects.create(name="Old", runtime="dismantled")
    assert "dismantled" in ada.get("/executors/").text


def test_running_sessions_are_shown_only_to_their_team(ada: Client, bob: Client, world: World) -> None:
    session = world.running_session()
    for page in ("/executors/", "/executors/live/"):
        mine, theirs = ada.get(page).content.decode(), bob.get(page).content.decode()
        assert path_of(session) in mine
        assert path_of(session) not in theirs
        assert "Fix the tests" not in theirs


def test_stopped_session_is_not_listed_as_running(ada: Client, world: World) -> None:
    session = world.resting_session()
    assert path_of(session) not in ada.get("/executors/").text


@pytest.fixture
def failed(world: World) -> Any:
    session = world.resting_session(resume_token="t")
    ExecutorRunning.objects.update(status="error", error_message="The disk is full.")
    return session


def test_failed_session_shows_its_error_and_a_retry(ada: Client, failed: Any) -> None:
    html = ada.get("/executors/").text
    assert "The disk is full." in html
    assert f'formaction="{path_of(failed)}resume/" name="mode" value="auto"' in html
    ada.post(f"{path_of(failed)}resume/", {"mode": "auto"})
    assert failed.intents.get(done_at=None).kind == "start"


def test_viewer_sees_the_error_without_a_retry_button(ada: Client, world: World, failed: Any) -> None:
    TeamRole.objects.create(team=world.team, user=world.ada, role=TeamRole.Role.VIEWER)
    html = ada.get("/executors/").text
    assert "The disk is full." in html
    assert "Retry" not in html


def test_staff_can_check_an_executor_and_read_the_result(ada: Client, world: World) -> None:
    path = f"/executors/{world.executor.id}/look/"
    assert path not in ada.get("/executors/").text
    assert ada.post(path).status_code == 403
    world.ada.is_staff = True
    world.ada.save()
    assert f'formaction="{path}"' in ada.get("/executors/").text
    text = ada.post(path, follow=True).text
    assert "Here is available. No agent should be running there. The check took" in text


def test_unusable_executor_says_why(ada: Client, world: World) -> None:
    world.ada.is_staff = True
    world.ada.save()
    place = Executor.objects.create(name="Far", runtime="remote_docker", config={"nonsense": True})
    old = Executor.objects.create(name="Old", runtime="dismantled")
    for row in (place, old):
        assert f"{row.name} is not available: " in ada.post(f"/executors/{row.id}/look/", follow=True).text


def test_execution_shows_its_host_and_lease(ada: Client, world: World) -> None:
    world.running_session()
    later = timezone.now() + timedelta(seconds=10)
    ExecutorRunning.objects.update(host_id=identity.host_id(), pid=4321, owner="boot", lease_expires_at=later)
    html = ada.get("/executors/").text
    assert "this machine" in html
    assert "held by supervisor boot, until" in html
    ExecutorRunning.objects.update(host_id="0123456789abcdef", owner="gone-and-away")
    html = ada.get("/executors/").text
    assert "another machine (01234567)" in html
    assert "held by supervisor gone-and (no longer running)" in html
    ExecutorRunning.objects.update(owner="", lease_expires_at=None)
    assert "not held" in ada.get("/executors/").text


def test_full_executor_is_marked_full(ada: Client, world: World) -> None:
    world.running_session()
    Executor.objects.update(max_live=1)
    html = ada.get("/executors/").text
    assert ">Full<" in html
    assert '<meter min="0" max="1" value="1"' in html


def test_missing_supervisor_is_reported(ada: Client, world: World) -> None:
    assert "first sweep finished" in ada.get("/executors/").text
    Supervisor.objects.all().delete()
    assert "No supervisor is running." in ada.get("/executors/").text

"""The setup page of an agent: what is missing, the key, the test, and the first task."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from executors_app.models import AgentProfile, ExecutorRunning
from executors_app.plugins import agent_type
from sessions_app.accounts.models import TeamRole
from sessions_app.agents import installed_programs
from sessions_app.agents.installed_programs import InstalledPrograms
from sessions_app.agents.services import agent_setup
from sessions_app.board.services.tasks import create_session
from sessions_app.models import Repository, TaskSession, session_transaction
from tests.pages.world import World, accepted, first_prompt, ingest_lines, path_of

pytestmark = pytest.mark.any_database


@pytest.fixture(autouse=True)
def _data(settings: Any, tmp_path: Path) -> None:
    settings.KANDEV_DATA_DIR = tmp_path


@pytest.fixture
def carol(world: World) -> Client:
    """Return the browser session of a member of Ada's team who is no administrator."""
    member = User.objects.create_user("carol")
    member.groups.add(world.team)
    client = Client()
    client.force_login(member)
    return client


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)


def codex(world: World) -> AgentProfile:
    return AgentProfile.objects.create(name="Codex", agent_type="codex", team=world.team)


def fail(session: TaskSession, code: str, message: str = "the agent wants a login") -> None:
    """Fail the session's start with ``code``."""
    session.intents.update(done_at=timezone.now())
    with session_transaction(session.id) as transaction:
        transaction.move_executor("launch")
        transaction.move_executor("ready")
        transaction.move_session("start")
        transaction.move_session("fail", error_code=code, error_message=message)
        transaction.set_fields(next_restart_at=timezone.now() + timedelta(hours=23))
    session.refresh_from_db()


def open_starts(session: TaskSession) -> int:
    return session.intents.filter(kind="start", done_at=None).count()


def test_missing_program_is_shown_with_its_command(ada: Client, world: World, nothing_installed: None) -> None:
    html = ada.get("/agents/codex/").text
    assert "Not installed" in html
    assert agent_type("codex").install in html
    others = ada.get("/agents/").text.split("Agents that are not installed yet")[1]
    assert 'id="kind-codex"' in others


def test_key_is_stored_for_the_team_alone_and_never_shown(staff: Client, world: World) -> None:
    shared = AgentProfile.objects.create(name="Shared", agent_type="codex")
    body = {"team": world.team.pk, "variable": "OPENAI_API_KEY", "value": "sk-very-secret"}
    page = staff.post("/agents/codex/key/", body, follow=True)
    assert "OPENAI_API_KEY is stored" in page.text
    assert "sk-very-secret" not in page.text
    shared.refresh_from_db()
    assert shared.env == {}
    assert AgentProfile.objects.get(team=world.team, agent_type="codex").env == {"OPENAI_API_KEY": "sk-very-secret"}


@pytest.mark.parametrize("values", [{"variable": "NOT A NAME"}, {"value": ""}, {"value": "a\0b"}])
def test_unusable_key_is_refused(values: dict[str, str], staff: Client, world: World) -> None:
    body = {"team": world.team.pk, "variable": "KEY", "value": "v", **values}
    assert 'role="alert"' in staff.post("/agents/codex/key/", body, follow=True).text
    assert not AgentProfile.objects.filter(agent_type="codex").exists()


def test_member_stores_no_key_and_adds_no_repository(ada: Client, world: World) -> None:
    for action, body in (("key", {"variable": "K", "value": "v"}), ("repository", {"path": "/srv"})):
        assert "Only administrators" in ada.post(f"/agents/codex/{action}/", body, follow=True).text
    assert not AgentProfile.objects.filter(agent_type="codex").exists()


def test_foreign_team_does_not_exist(ada: Client, bob: Client, world: World) -> None:
    assert bob.get(f"/agents/demo/?team={world.team.pk}").status_code == 404
    assert bob.post("/agents/demo/test/", {"team": world.team.pk}).status_code == 404
    assert ada.get("/agents/none/").status_code == 404


def test_second_test_joins_the_one_that_runs(ada: Client, world: World) -> None:
    for _ in range(2):
        assert ada.post("/agents/demo/test/").headers["Location"].endswith("#test")
    session = TaskSession.objects.get()
    assert (session.task.title, session.policy) == (agent_setup.TEST_TASK, "manual")
    assert first_prompt(session).text == agent_setup.TEST_PROMPT
    assert "Running" in ada.get("/agents/demo/").text


def test_profile_of_the_page_is_the_one_that_is_tested(ada: Client, bob: Client, world: World) -> None:
    AgentProfile.objects.create(name="The team’s own", agent_type="demo", team=world.team)
    newer = AgentProfile.objects.create(name="Newer", agent_type="demo", team=world.team)
    link = f'href="/agents/demo/?team={world.team.pk}&amp;profile={newer.pk}#test"'
    assert link in ada.get("/settings/agents/").text
    page = ada.get(f"/agents/demo/?team={world.team.pk}&profile={newer.pk}")
    assert "with the agent profile <strong>Newer</strong>" in page.text
    assert page.text.count(f'name="profile" value="{newer.pk}"') >= 2, "each form keeps it"
    answer = ada.post("/agents/demo/test/", {"team": world.team.pk, "profile": newer.pk})
    assert f"profile={newer.pk}" in answer.headers["Location"]
    assert TaskSession.objects.get().agent_profile == newer
    assert "Running" in ada.get(answer.headers["Location"]).text
    assert "Not tested yet." in ada.get("/agents/demo/").text
    assert ada.get(f"/agents/codex/?profile={newer.pk}").status_code == 404, "another type"
    assert bob.get(f"/agents/demo/?profile={newer.pk}").status_code == 404, "another team"
    AgentProfile.objects.filter(pk=newer.pk).update(disabled_at=timezone.now())
    assert ada.post("/agents/demo/test/", {"profile": newer.pk}).status_code == 404


def test_passed_test_shows_the_reply_and_is_stopped(ada: Client, world: World) -> None:
    session = started_test(ada)
    ingest_lines(session, accepted(session), {"kind": "message.agent", "text": "Hello <b>you</b>"})
    session.runs.update(started_at=timezone.now())
    assert agent_setup.stop_finished_tests() == 0
    ingest_lines(session, {"kind": "turn.completed", "message_id": first_prompt(session).message_id})
    html = ada.get("/agents/demo/live/").json()["parts"]["test"]
    assert "Passed" in html
    assert "Hello &lt;b&gt;you&lt;/b&gt;" in html
    assert agent_setup.stop_finished_tests() == 1
    session.refresh_from_db()
    assert session.desired_state == "stopped"
    assert "Works" in ada.get("/agents/").text


def test_failed_test_shows_the_error(ada: Client, world: World) -> None:
    session = started_test(ada)
    fail(session, "agent_exited", "The agent exited with code 3: boom <i>")
    html = ada.get("/agents/demo/live/").json()["parts"]["test"]
    assert "Failed" in html
    assert "boom &lt;i&gt;" in html


def test_test_that_takes_too_long_is_stopped(ada: Client, world: World) -> None:
    session = started_test(ada)
    session.intents.update(created_at=timezone.now() - agent_setup.TEST_LIMIT * 2)
    assert agent_setup.stop_finished_tests() == 1


def test_tests_are_limited(ada: Client, world: World) -> None:
    for _ in range(21):
        page = ada.post("/agents/demo/test/", follow=True)
        TaskSession.objects.update(desired_state="stopped")
    assert "Too many requests" in page.text
    assert TaskSession.objects.count() == 20


def test_first_task_starts_in_the_chosen_repository(staff: Client, world: World) -> None:
    body = {"team": world.team.pk, "repository": world.repository.id, "prompt": "Read it.\r\nSay what it does."}
    address = staff.post("/agents/codex/task/", body).headers["Location"]
    session = TaskSession.objects.get()
    assert address == path_of(session)
    assert (session.task.title, session.agent_profile.agent_type) == ("Read it.", "codex")
    assert first_prompt(session).text == "Read it.\nSay what it does."
    other = Repository.objects.create(name="other", team=world.bob.groups.get(), path="/srv/other")
    assert (
        "Choose a repository." in staff.post("/agents/codex/task/", {**body, "repository": other.id}, follow=True).text
    )


def test_logged_out_session_shows_its_login(staff: Client, carol: Client, world: World) -> None:
    session = create_session(world.ada, world.task(), codex(world), world.executor, prompt="Go.")
    fail(session, "auth_required")
    html = staff.get(path_of(session)).text
    assert f"data-types>Type <code>exec {agent_type('codex').login}</code>" in html
    assert "/agents/codex/?executor=" in html
    assert "data-types" not in carol.get(path_of(session)).text, "a member may not open a terminal beside the server"
    assert f'{path_of(session)}#login"' in staff.get("/agents/codex/").text
    assert "#login" not in carol.get("/agents/codex/").text
    assert "Not logged in" in carol.get("/agents/codex/").text


def test_turn_refused_without_a_login_shows_the_login(staff: Client, carol: Client, world: World) -> None:
    session = world.running_session()
    TaskSession.objects.filter(id=session.id).update(agent_profile=codex(world))
    refused = {"kind": "turn.failed", "code": "auth_required", "message": "Authentication required"}
    ingest_lines(session, {**refused, "message_id": first_prompt(session).message_id})
    html = staff.get(path_of(session)).text
    assert "The turn failed: the agent is not logged in." in html
    assert f"data-types>Type <code>exec {agent_type('codex').login}</code>" in html
    assert "data-types" not in carol.get(path_of(session)).text


def test_finished_login_retries_each_waiting_session_once(world: World) -> None:
    profile = codex(world)
    waiting = [create_session(world.ada, world.task(), profile, world.executor, prompt="Go.") for _ in range(2)]
    for session in waiting:
        fail(session, "auth_required")
    other = create_session(world.ada, world.task(), world.profile, world.executor, prompt="Go.")
    fail(other, "auth_required")
    for _ in range(2):
        agent_setup.retry_after_login(waiting[0].id)
    assert [open_starts(session) for session in (*waiting, other)] == [1, 1, 0]
    waiting[1].refresh_from_db()
    assert waiting[1].next_restart_at is None


@pytest.mark.parametrize("left", ["the team", "for good", "its rights"])
def test_login_of_somebody_else_starts_no_session_of_an_owner_who_left(world: World, left: str) -> None:
    profile, carol = codex(world), User.objects.create_user("carol")
    carol.groups.add(world.team)
    theirs, other = [
        create_session(owner, world.task(), profile, world.executor, prompt="Go.") for owner in (carol, world.ada)
    ]
    for session in (theirs, other):
        fail(session, "auth_required")
    match left:
        case "the team":
            carol.groups.clear()
        case "for good":
            User.objects.filter(id=carol.id).update(is_active=False)
        case _:
            TeamRole.objects.create(user=carol, team=world.team, role=TeamRole.Role.VIEWER)
    agent_setup.retry_after_login(other.id)
    assert [open_starts(session) for session in (theirs, other)] == [0, 1]
    agent_setup.retry_after_login(theirs.id)
    assert open_starts(theirs) == 1, "somebody has logged in there"


@pytest.mark.parametrize("has_left", [False, True])
def test_installed_program_starts_the_waiting_session_once_unless_its_owner_left(
    has_left: bool, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = create_session(world.ada, world.task(), codex(world), world.executor, prompt="Go.")
    fail(session, "program_missing", "not found")
    ExecutorRunning.objects.filter(session=session).update(host_id="here")
    monkeypatch.setattr("executors_app.machine.process.identity.host_id", lambda: "here")
    found: dict[str, str | None] = {"codex-acp": "/bin/codex-acp"}
    monkeypatch.setattr("shutil.which", lambda program, path=None: found.get(program))
    assert InstalledPrograms().retry_sessions() == 0, "the program was installed when the start failed"
    watch = InstalledPrograms()
    found.clear()
    assert watch.retry_sessions() == 0
    found["codex-acp"] = "/bin/codex-acp"
    if has_left:
        world.ada.groups.clear()
    assert watch.retry_sessions() == int(not has_left)
    assert open_starts(session) == int(not has_left)
    assert watch.retry_sessions() == 0


def test_installed_program_starts_many_sessions_some_at_a_time_and_is_looked_for_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = codex(world)
    for number in range(3):
        session = create_session(world.ada, world.task(title=str(number)), profile, world.executor, prompt="Go.")
        fail(session, "program_missing", "not found")
    ExecutorRunning.objects.update(host_id="here")
    monkeypatch.setattr("executors_app.machine.process.identity.host_id", lambda: "here")
    monkeypatch.setattr(installed_programs, "AT_ONCE", 2)
    which = Mock(return_value=None)
    monkeypatch.setattr("shutil.which", which)
    watch = InstalledPrograms()
    watch.retry_sessions()
    assert which.call_count == 1
    which.return_value = "/bin/codex-acp"
    assert [watch.retry_sessions() for _ in range(3)] == [2, 1, 0]


def started_test(ada: Client) -> TaskSession:
    """Start a test of the demo agent, up to its ready agent; return its session."""
    ada.post("/agents/demo/test/")
    session = TaskSession.objects.get()
    session.intents.update(done_at=timezone.now())
    with session_transaction(session.id) as transaction:
        transaction.move_executor("launch")
        transaction.move_executor("ready")
        transaction.set_fields(launch_id="a-launch")
        transaction.move_session("start")
        transaction.move_session("ready")
    session.refresh_from_db()
    return session

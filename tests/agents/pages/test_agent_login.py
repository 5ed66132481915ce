"""Logging agents in and out by the methods that they publish, from pages and by the API."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from executors_app.agents import AgentType
from executors_app.models import AgentProfile
from executors_app.plugins import agent_type
from sessions_app.agents.services import agent_login
from sessions_app.agents.services.agent_setup import start_test
from sessions_app.board.services.tasks import create_session
from sessions_app.kernel.services.errors import AlreadyRunning, Invalid, ReadOnly, SessionsError
from sessions_app.models import AgentSettings, IntentKind, ReportedAgent, TaskSession, session_transaction
from sessions_app.sessions.services.intents import request_stop
from sessions_app.starts.outcomes import StartFailure, write_start_failure
from tests.pages.world import World, path_of

pytestmark = pytest.mark.any_database

METHODS: Final = [
    {"id": "account", "name": "Account <b>", "description": "In the browser"},
    {"id": "terminal", "name": "Terminal", "type": "terminal", "args": ["--log-in", "a b;c"]},
    {"id": "key", "name": "Key", "type": "env_var", "vars": [{"name": "API_KEY"}], "link": "https://example.org/keys"},
]
REPORTED_BY_AGENT: Final[Mapping[str, Any]] = {
    "agent": {"name": "demo", "version": "0.9"},
    "auth": {"methods": METHODS, "logout": True},
}
SUCCEEDED: Final = {"state": "succeeded", "code": "", "reason": ""}
REFUSED: Final = {"state": "failed", "code": "login_failed", "reason": "Wrong password"}


@pytest.fixture(autouse=True)
def _data(settings: Any, tmp_path: Path) -> None:
    settings.KANDEV_DATA_DIR = tmp_path


@pytest.fixture
def profile(world: World) -> AgentProfile:
    return AgentProfile.objects.create(name="Own", agent_type="custom_acp", team=world.team, command=["/opt/my agent"])


@pytest.fixture
def logged_out(world: World, staff: Client, profile: AgentProfile) -> TaskSession:
    """Return a session whose agent requires a login and has published its methods."""
    session = create_session(world.ada, world.task(), profile, world.executor, prompt="Go.")
    begin(session)
    return fail(session)


def begin(session: TaskSession) -> None:
    """Move the session into a start."""
    with session_transaction(session.id) as transaction:
        if session.state == "CREATED":
            transaction.move_executor("launch")
            transaction.move_executor("ready")
        transaction.move_session("start")


def fail(session: TaskSession, **reported: Any) -> TaskSession:
    """Fail the open start because the agent is not logged in."""
    failure = StartFailure(
        "auth_required", "the agent wants a login", permanent=True, told={**REPORTED_BY_AGENT, **reported}
    )
    intent = session.intents.get(kind=IntentKind.START, done_at=None)
    write_start_failure(session.id, intent.id, None, failure)
    session.refresh_from_db()
    return session


def state_of(session: TaskSession) -> dict[str, Any]:
    session.refresh_from_db()
    state = agent_login.login_state(session)
    assert state is not None
    return state


def send(client: Client, path: str, **body: Any) -> Any:
    return client.post(f"/api/v1/{path}", json.dumps(body), content_type="application/json")


def api_path(session: TaskSession, name: str) -> str:
    return f"tasks/{session.task_id}/sessions/{session.id}/{name}/"


def test_published_methods_are_shown_on_the_waiting_session(staff: Client, logged_out: TaskSession) -> None:
    html = staff.get(path_of(logged_out)).text
    assert 'name="method" value="account">Log in: Account &lt;b&gt;' in html
    command = "&#x27;/opt/my agent&#x27; --log-in &#x27;a b;c&#x27;"
    assert f"data-types>Type <code>exec {command}</code></button>" in html
    assert html.count(command) == 1, "what is typed is what is shown: there is no second copy"
    assert "<code>API_KEY</code>" in html
    assert 'href="https://example.org/keys"' in html


def test_member_on_the_servers_machine_is_offered_no_login(world: World, logged_out: TaskSession) -> None:
    member = User.objects.create_user("carol")
    member.groups.add(world.team)
    client = Client()
    client.force_login(member)
    assert "In the browser" not in client.get(path_of(logged_out)).text
    assert send(client, api_path(logged_out, "login"), method="account").status_code == 403
    with pytest.raises(ReadOnly):
        agent_login.request_logout(logged_out.id, member)


def test_login_request_belongs_to_the_start_and_ends_with_it(staff: Client, logged_out: TaskSession) -> None:
    answer = send(staff, api_path(logged_out, "login"), method="account")
    assert (answer.status_code, answer.json()["last"]["state"]) == (202, "waiting")
    intent = logged_out.intents.get(kind=IntentKind.START, done_at=None)
    assert intent.payload["login"] == {"action": "login", "method": "account", "name": "Account <b>"}
    logged_out.intents.filter(id=intent.id).update(claimed_generation=1)
    assert state_of(logged_out)["state"] == "running"
    html = staff.get(path_of(logged_out)).text
    assert "The login by “Account &lt;b&gt;” is running." in html
    begin(logged_out)
    assert fail(logged_out, login=REFUSED).error_code == "auth_required"
    last = staff.get(f"/api/v1/{api_path(logged_out, 'login')}").json()["last"]
    assert (last["state"], last["code"], last["reason"], last["by"]) == (
        "failed",
        "login_failed",
        "Wrong password",
        "ada",
    )
    names = list(logged_out.events.filter(name__startswith="session.login").values_list("name", "payload__by"))
    assert names == [("session.login.requested", "ada"), ("session.login.ended", None)]


def test_successful_login_retries_the_other_waiting_sessions(
    world: World, profile: AgentProfile, logged_out: TaskSession, django_capture_on_commit_callbacks: Any
) -> None:
    other = create_session(world.ada, world.task(), profile, world.executor, prompt="Go.")
    begin(other)
    fail(other)
    agent_login.request_login(logged_out.id, world.ada, "account")
    intent = logged_out.intents.get(kind=IntentKind.START, done_at=None)
    with django_capture_on_commit_callbacks(execute=True), session_transaction(logged_out.id) as transaction:
        agent_login.settle_login(transaction, intent.id, {"login": SUCCEEDED}, "")
    assert state_of(logged_out)["state"] == "succeeded"
    assert other.intents.filter(kind=IntentKind.START, done_at=None).count() == 1


def test_answer_without_an_outcome_is_no_success(world: World, logged_out: TaskSession) -> None:
    agent_login.request_login(logged_out.id, world.ada, "account")
    intent = logged_out.intents.get(kind=IntentKind.START, done_at=None)
    with session_transaction(logged_out.id) as transaction:
        agent_login.settle_login(transaction, intent.id, {}, "")
    assert (state_of(logged_out)["state"], state_of(logged_out)["code"]) == ("failed", "login_failed")


def test_withdrawn_start_withdraws_its_login(world: World, logged_out: TaskSession) -> None:
    agent_login.request_login(logged_out.id, world.ada, "account")
    logged_out.intents.update(done_at=timezone.now(), outcome="stopped")
    assert state_of(logged_out)["state"] == "withdrawn"


@pytest.mark.parametrize(
    ("method", "words"),
    [("other", "has not published"), ("terminal", "runs in a terminal"), ("key", "needs variables")],
)
def test_method_that_cannot_be_sent_is_refused(method: str, words: str, staff: Client, logged_out: TaskSession) -> None:
    answer = send(staff, api_path(logged_out, "login"), method=method)
    assert (answer.status_code, answer.json()["code"]) == (400, "validation_error")
    assert words in answer.json()["message"]


def test_logout_needs_the_capability(world: World, staff: Client, logged_out: TaskSession) -> None:
    assert send(staff, api_path(logged_out, "logout")).json()["last"]["action"] == "logout"
    AgentSettings.objects.update(logs_out=False)
    with pytest.raises(Invalid, match="does not offer to log out"):
        agent_login.request_logout(logged_out.id, world.ada)


def test_running_agent_gets_no_login_request(world: World, staff: Client, profile: AgentProfile) -> None:
    session = world.running_session()
    AgentSettings.objects.create(session=session, auth_methods=METHODS, auth_at=timezone.now())
    with pytest.raises(AlreadyRunning, match="Stop the session first"):
        agent_login.request_login(session.id, world.ada, "account")


def test_report_belongs_to_its_team(world: World, bob: Client, logged_out: TaskSession) -> None:
    row = ReportedAgent.objects.get()
    assert (row.team, row.executor, row.version) == (world.team, world.executor, "0.9")
    assert "In the browser" not in bob.get(f"/agents/custom_acp/?executor={world.executor.pk}").text
    query = f"team={world.team.pk}&executor={world.executor.pk}"
    assert bob.get(f"/api/v1/agent-types/custom_acp/login/?{query}").status_code == 400


@pytest.fixture
def logged_out_test(world: World, profile: AgentProfile) -> TaskSession:
    """Return a test of the team's agent that ended because the agent requires a login."""
    test = start_test(world.ada, agent_type("custom_acp"), world.team, world.executor)
    begin(test)
    fail(test)
    request_stop(test.id, world.ada)
    return test


def test_setup_page_logs_in_by_a_test_session(world: World, staff: Client, logged_out_test: TaskSession) -> None:
    html = staff.get("/agents/custom_acp/").text
    assert "Log in: Account &lt;b&gt;" in html
    assert "Log Custom agent (ACP) out on Here?" in html
    body = {"team": world.team.pk, "executor": world.executor.pk, "method": "account"}
    assert staff.post("/agents/custom_acp/login/", body).headers["Location"].endswith("#test")
    test = TaskSession.objects.exclude(pk=logged_out_test.pk).get()
    assert test.intents.get().payload["login"]["method"] == "account"
    assert "The login by “Account &lt;b&gt;” waits" in staff.get("/agents/custom_acp/").text
    query = f"team={world.team.pk}&executor={world.executor.pk}"
    document = staff.get(f"/api/v1/agent-types/custom_acp/login/?{query}").json()
    assert (document["session"], document["last"]["state"]) == (str(test.id), "waiting")


def test_setup_page_offers_only_what_a_tests_agent_published(
    world: World, staff: Client, logged_out: TaskSession
) -> None:
    assert "Log in: Account" not in staff.get("/agents/custom_acp/").text, "another session's agent published it"
    with pytest.raises(Invalid, match="has not published"):
        agent_login.log_in_at(world.ada, agent_type("custom_acp"), world.team, world.executor, "account")


def test_unknown_method_starts_no_test(world: World, staff: Client, logged_out: TaskSession) -> None:
    body = {"team": world.team.pk, "executor": str(world.executor.pk), "method": "other"}
    assert send(staff, "agent-types/custom_acp/login/", **body).status_code == 400
    assert TaskSession.objects.count() == 1


@pytest.mark.parametrize(
    ("version", "needed", "outdated"),
    [
        ("0.9", "1.0", True),
        ("1.0", "1.0", False),
        ("1.0.1", "1.0", False),
        ("0.44.0", "0.101.0", True),
        ("v1.0-beta", "1.0", True),
        ("1.0", "1.0.0", False),
        ("", "1.0", False),
        ("nightly", "1.0", False),
        ("0.9", "", False),
    ],
)
def test_version_is_outdated_only_if_it_is_known_to_be_older(version: str, needed: str, outdated: bool) -> None:
    kind = AgentType(name="a", title="A", minimum={"agent": needed} if needed else {})
    assert kind.required_version("agent", version) == (needed if outdated else "")
    assert kind.required_version("another", version) == ""


def test_refused_login_leaves_no_request(world: World, logged_out: TaskSession) -> None:
    with pytest.raises(SessionsError):
        agent_login.request_login(logged_out.id, world.ada, "other")
    logged_out.refresh_from_db()
    assert agent_login.login_state(logged_out) is None

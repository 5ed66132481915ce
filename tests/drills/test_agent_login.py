"""A login of an agent survives the kill of the control plane that asked for it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.drills.deployment import Deployment, Session
from tests.support import login_agent
from tests.waiting import eventually

pytestmark = pytest.mark.any_database


def login_of(session: Session) -> dict[str, Any]:
    body: dict[str, Any] = session.deployment.api("GET", f"{session.path}/login/")
    return body


def open_question(session: Session) -> dict[str, Any] | None:
    permissions = session.deployment.api("GET", f"{session.path}/permissions/")["results"]
    return next((each for each in permissions if each["state"] == "pending"), None)


def test_login_and_its_question_survive_a_kill_of_the_control_plane(deployment: Deployment) -> None:
    deployment.serve()
    session = deployment.start_session("remember walrus", {**login_agent.COMMAND, "args": ["--login-asks"]})
    eventually(lambda: session.row["error_code"] == "auth_required", timeout=90, describe="the agent requires a login")
    assert [each["id"] for each in login_of(session)["methods"]] == ["demo", "expired", "terminal"]

    deployment.api("POST", f"{session.path}/login/", {"method": "demo"})
    question = eventually(lambda: open_question(session), timeout=90, describe="the login asks its question")
    assert question is not None
    assert login_of(session)["last"]["state"] == "running"
    deployment.kill_server()
    deployment.serve()
    assert login_of(session)["last"]["state"] == "running", "the login still runs"

    answer = {"option_id": "accept", "resume_token": question["resume_token"]}
    deployment.api("POST", f"{session.path}/permissions/{question['id']}/", answer)
    eventually(
        lambda: login_of(session)["last"]["state"] == "succeeded", timeout=120, describe="the login has succeeded"
    )
    eventually(lambda: session.prompts()[0]["state"] == "done", timeout=120, describe="the waiting prompt is answered")
    assert "I will remember walrus." in session.agent_text()
    assert session.names().count("session.login.ended") == 1
    login_attempts = (session.agent_home / "asked-to-log-in").read_text().splitlines()
    assert len(login_attempts) == 1, "the agent received one prompt"

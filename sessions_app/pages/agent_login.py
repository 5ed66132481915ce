"""Ways to log an agent in, and the progress of a login, as the pages of sessions and agents show them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from executors_app.agentctl.agent_settings import AGENT
from executors_app.agentctl.protocol import Code, LoginAction, LoginState
from executors_app.plugins import UnknownPlugin
from sessions_app.models import TaskSession
from sessions_app.services import agent_login

_ENDINGS: Final[Mapping[str, str]] = {
    LoginState.SUCCEEDED: "succeeded",
    LoginState.FAILED: "failed",
    agent_login.WITHDRAWN: "was withdrawn before the agent was asked",
}


def login_context(session: TaskSession, *, offers: bool, is_running: bool) -> dict[str, Any]:
    """Return the context of ``session/login.html``; ``offers``: the session waits for a login.

    A running agent is not asked to log in by its own methods: that is part of a start. The terminal remains.

    One query if it waits for a login, and one while a login runs.
    """
    methods = _login_methods(session) if offers else []
    if is_running:
        methods = [each for each in methods if each["type"] != AGENT]
    return {"methods": methods, "progress": login_progress(agent_login.login_state(session))}


def _login_methods(session: TaskSession) -> list[dict[str, Any]]:
    """Return the ways to log the session's agent in; none if its type is not installed any more."""
    try:
        argv = session.agent_profile.argv(session.executor.runtime)
    except UnknownPlugin:
        return []
    return agent_login.login_methods(agent_login.reported_agent(session), argv)


def login_progress(state: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return what to show of the last login: a sentence, its time, and whether it runs; None if there was none."""
    if state is None:
        return None
    what = "The logout" if state["action"] == LoginAction.LOGOUT else f"The login by “{state['name']}”"
    ended = _ENDINGS.get(state["state"])
    if ended is None:
        text = (
            f"{what} waits for the agent’s start."
            if state["state"] == agent_login.WAITING
            else f"{what} is running. The agent may ask you to do something, in a browser or in a question here."
        )
    else:
        text = f"{what} {ended}{': ' if state['reason'] else '.'}{state['reason']}"
    at = datetime.fromisoformat(state["ended_at"] or state["at"])
    return {"text": text, "at": at, "by": state["by"], "runs": ended is None, "state": state["state"]}


def wants_login(session: TaskSession) -> bool:
    """Whether the session's agent did not start because it is not logged in."""
    return session.error_code == Code.AUTH_REQUIRED

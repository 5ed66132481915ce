"""What the pages show of an agent: its settings, commands and title, ways to log it in, and the progress of a login."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from executors_app.plugins import UnknownPlugin, agent_type
from executors_app.wire.auth_methods import AGENT
from executors_app.wire.protocol import Code, LoginAction, LoginState
from sessions_app.agents.events import left_out_sentence
from sessions_app.agents.models import REFUSED, WAITING
from sessions_app.agents.services import agent_login
from sessions_app.agents.services.agent_settings import agent_settings_document
from sessions_app.agents.services.mcp_servers import given_servers
from sessions_app.kernel.rules.states import TERMINAL_STATES
from sessions_app.kernel.rules.wording import plural
from sessions_app.models import TaskSession


def parse_posted_setting(kind: str, value: str) -> str | bool:
    """Return the value of a posted form, which knows only text."""
    if kind == "boolean":
        return value == "true"
    return value


def agent_settings_context(session: TaskSession) -> dict[str, Any]:
    """Return the context of ``agents/session_agent.html``, ``agents/choices.html`` and ``sessions/title.html``."""
    document = agent_settings_document(session)
    over = session.task.is_over or session.state in TERMINAL_STATES
    settings = [_setting_context(each, session) for each in document["settings"]]
    return {
        "agent_title": document["title"],
        "agent_settings": settings,
        "composer_settings": _composer_settings(settings),
        "agent_commands": document["commands"],
        "may_change_settings": not over,
        "permission_note": _permission_note(session),
        "mcp_servers": [{**each, "note": left_out_sentence(each)} for each in given_servers(session)],
    }


MAX_COMPOSER_SETTINGS: Final = 6
"""Settings that can be chosen in the composer; all others are in the card of the agent alone."""
_COMPOSER_ORDER: Final = ("mode", "model")
"""Ids or categories of the settings that come first in the composer."""


def _composer_settings(settings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the settings for the composer, mode and model first, and mark them with ``is_in_composer``."""
    chosen = sorted(settings, key=_composer_place)[:MAX_COMPOSER_SETTINGS]
    for setting in chosen:
        setting["is_in_composer"] = True
    return chosen


def _composer_place(setting: dict[str, Any]) -> int:
    names = (setting["id"], setting["category"])
    return next((at for at, name in enumerate(_COMPOSER_ORDER) if name in names), len(_COMPOSER_ORDER))


_WRITING_KINDS: Final = frozenset({"edit", "delete", "move", "execute"})
"""Kinds of tool calls for which an agent in the mode *ask* should ask."""
_OBSERVED_CALLS: Final = 50
"""The newest tool calls of a session that are examined."""


def _permission_note(session: TaskSession) -> str:
    """Return that the agent does not honour the permission mode *ask*; empty if it does, or if that is not known."""
    profile = session.agent_profile
    try:
        kind = agent_type(profile.agent_type)
    except UnknownPlugin:
        return ""
    if profile.permission_mode != "ask":
        return ""
    if kind.asks_permission:
        return _observed_without_asking(session)
    return (
        f"The permission mode is “ask”, but {kind.title} was observed to run tools without asking. "
        "Kandev cannot hold these tools back; rely on the isolation of the executor."
    )


def _observed_without_asking(session: TaskSession) -> str:
    """Return that tools have run in this session although its agent has never asked; empty if it has, or none ran."""
    calls = session.messages.filter(role="tool").order_by("-seq")
    newest = calls.values_list("payload__tool_kind", "payload__status")[:_OBSERVED_CALLS]
    count = sum(kind in _WRITING_KINDS and status == "completed" for kind, status in newest)
    if not count or session.permissions.exists():
        return ""
    ran = plural(count, "a tool that changes files or runs commands", "{} tools that change files or run commands")
    return (
        f"The permission mode is “ask”. In this session the agent has run {ran} and has never asked for permission. "
        "Its own settings may allow that; Kandev cannot hold these tools back."
    )


def _setting_context(setting: dict[str, Any], session: TaskSession) -> dict[str, Any]:
    """Return a setting with the value to show as chosen: the one that waits, if there is one."""
    change = setting["change"] or {}
    state = change.get("state")
    context = setting | {
        "is_switch": setting["type"] == "boolean",
        "is_in_composer": False,
        "chosen": setting["value"],
        "present": _value_name(setting, setting["value"]),
        "note": "",
        "refusal": "",
    }
    if state == WAITING:
        context["chosen"] = change["value"]
        context["note"] = _waiting_note(setting, session)
    elif state == REFUSED:
        context["refusal"] = _refusal(setting, change)
    return context


def _waiting_note(setting: dict[str, Any], session: TaskSession) -> str:
    when = "Applied when the agent starts"
    if session.launch_id:
        when = "Waiting for the agent"
    present = _value_name(setting, setting["value"])
    if present:
        return f"{when}. Now: {present}."
    return f"{when}."


def _refusal(setting: dict[str, Any], change: dict[str, Any]) -> str:
    refused = f"The agent refused “{_value_name(setting, change['value'])}”"
    if change["reason"]:
        return f"{refused}: {change['reason']}"
    return refused


def _value_name(setting: dict[str, Any], value: Any) -> str:
    if isinstance(value, bool):
        if value:
            return "On"
        return "Off"
    return next((each["name"] for each in setting["choices"] if each["value"] == value), str(value or ""))


_ENDINGS: Final[Mapping[str, str]] = {
    LoginState.SUCCEEDED: "succeeded",
    LoginState.FAILED: "failed",
    agent_login.WITHDRAWN: "was withdrawn before the agent was asked",
}


def login_context(session: TaskSession, *, offers: bool, is_running: bool) -> dict[str, Any]:
    """Return the context of ``login`` of ``sessions/banner.html``; ``offers``: the session waits for a login.

    A running agent is not asked to log in by its own methods: that is part of a start. The terminal remains.

    One query if it waits for a login, and one while a login runs.
    """
    methods: list[dict[str, Any]] = []
    if offers:
        methods = _login_methods(session)
    if is_running:
        methods = [each for each in methods if each["type"] != AGENT]
    return {"methods": methods, "progress": login_progress(agent_login.login_state(session))}


def _login_methods(session: TaskSession) -> list[dict[str, Any]]:
    """Return the ways to log the session's agent in; none if its type is no longer installed."""
    try:
        argv = session.agent_profile.argv(session.executor.runtime)
    except UnknownPlugin:
        return []
    return agent_login.login_methods(agent_login.published_logins(session), argv)


def login_progress(state: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return what to show of the last login: a sentence, its time, and whether it runs; None if there was none."""
    if state is None:
        return None
    return {
        "text": _login_sentence(state),
        "at": datetime.fromisoformat(state["ended_at"] or state["at"]),
        "by": state["by"],
        "runs": state["state"] not in _ENDINGS,
        "state": state["state"],
    }


def _login_sentence(state: Mapping[str, Any]) -> str:
    action = f"The login by “{state['name']}”"
    if state["action"] == LoginAction.LOGOUT:
        action = "The logout"
    ending = _ENDINGS.get(state["state"])
    if ending is not None and state["reason"]:
        return f"{action} {ending}: {state['reason']}"
    if ending is not None:
        return f"{action} {ending}."
    if state["state"] == agent_login.WAITING:
        return f"{action} waits for the agent’s start."
    return f"{action} is running. The agent may ask you to do something, in a browser or in a question here."


def wants_login(session: TaskSession) -> bool:
    """Whether the session's agent did not start because it is not logged in."""
    return session.error_code == Code.AUTH_REQUIRED

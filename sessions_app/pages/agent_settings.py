"""The card of the session page about its agent: settings that can be changed, commands, and the agent's title."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from executors_app.agentctl.protocol import LeftOutReason
from sessions_app.domain.states import TERMINAL_STATES
from sessions_app.models import TaskSession
from sessions_app.models.agents import REFUSED, WAITING
from sessions_app.services.agent_settings import agent_settings_document
from sessions_app.services.mcp_servers import SECRET_MISSING, given_servers


def parse_posted_setting(kind: str, value: str) -> str | bool:
    """Return the value of a posted form, which knows only text."""
    return value == "true" if kind == "boolean" else value


def agent_settings_context(session: TaskSession) -> dict[str, Any]:
    """Return the context of ``session/agent.html`` and ``session/title.html``."""
    document = agent_settings_document(session)
    over = session.task.is_over or session.state in TERMINAL_STATES
    return {
        "agent_title": document["title"],
        "agent_settings": [_setting_context(each, session) for each in document["settings"]],
        "agent_commands": document["commands"],
        "may_change_settings": not over,
        "mcp_servers": [{**each, "note": left_out_sentence(each)} for each in given_servers(session)],
    }


def left_out_sentence(server: Mapping[str, Any]) -> str:
    """Return why an agent was not given a server; empty if it was given."""
    name, reason = f"MCP server “{server.get('name', '')}”", str(server.get("reason", ""))
    if reason == SECRET_MISSING:
        return f"{name} was left out: the agent profile has no variable {', '.join(server.get('variables', ()))}."
    why = _LEFT_OUT_REASONS.get(reason, "")
    return f"{name} was left out: {why}." if why else ""


_LEFT_OUT_REASONS: Final[Mapping[str, str]] = {
    LeftOutReason.HTTP_UNSUPPORTED: "the agent does not support servers over HTTP",
    LeftOutReason.SSE_UNSUPPORTED: "the agent does not support servers over SSE",
    LeftOutReason.UNSUPPORTED: "the agent uses only the servers of its own configuration",
}


def _setting_context(setting: dict[str, Any], session: TaskSession) -> dict[str, Any]:
    """Return a setting with the value to show as chosen: the one that waits, if there is one."""
    change = setting["change"] or {}
    waiting = change.get("state") == WAITING
    value = change["value"] if waiting else setting["value"]
    return {
        **setting,
        "is_switch": setting["type"] == "boolean",
        "chosen": value,
        "present": _value_name(setting, setting["value"]),
        "note": _waiting_note(setting, session) if waiting else "",
        "refusal": _refusal(setting, change) if change.get("state") == REFUSED else "",
    }


def _waiting_note(setting: dict[str, Any], session: TaskSession) -> str:
    when = "Waiting for the agent" if session.launch_id else "Applied when the agent starts"
    present = _value_name(setting, setting["value"])
    return f"{when}. Now: {present}." if present else f"{when}."


def _refusal(setting: dict[str, Any], change: dict[str, Any]) -> str:
    reason = f": {change['reason']}" if change["reason"] else ""
    return f"The agent refused “{_value_name(setting, change['value'])}”{reason}"


def _value_name(setting: dict[str, Any], value: Any) -> str:
    if isinstance(value, bool):
        return "On" if value else "Off"
    return next((each["name"] for each in setting["choices"] if each["value"] == value), str(value or ""))

"""How a session is, in one sentence with the next step, where no banner has more to say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sessions_app.domain.states import SessionState
from sessions_app.domain.tokens import WaitKind

_STATES: Final[Mapping[str, str]] = {
    SessionState.CREATED: "Nothing has been started yet. Your first prompt starts the agent.",
    SessionState.STARTING: "The agent is starting. What you write waits for it in the queue.",
    SessionState.RUNNING: "The agent is at work. What you write meanwhile waits in the queue.",
    SessionState.WAITING_FOR_INPUT: "It is your turn: the agent has finished, and waits for your next prompt.",
}
_RESTING: Final = "The agent is not running. Your next prompt starts it again."


def sentence(status: Mapping[str, Any]) -> str:
    """From a session's status; empty where only a banner knows."""
    if status["wait"] and status["wait"]["kind"] != WaitKind.PERMISSION:
        return "The session waits for something from outside. It goes on by itself when that has come."
    if status["state"] == SessionState.WAITING_FOR_INPUT and not status["is_agent_running"]:
        return _RESTING
    return _STATES.get(status["state"], "")

"""Whether a session's rows hold what they can hold, before anybody acts upon them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db.models import Model

from executors_app.encryption import Closed
from executors_app.json_fields import is_misfit
from executors_app.models import ExecutorRunning
from executors_app.plugins import agent_types
from sessions_app.domain import soundness
from sessions_app.models import TaskSession


def flaws_of(session: TaskSession, execution: ExecutorRunning | None) -> list[str]:
    """What cannot be in the rows of a session, in words; no query but for a profile that is not loaded."""
    values = _columns(session)
    if execution is not None:
        columns = _columns(execution)
        values = {**columns, "runtime_state": columns.get("state"), **values}
    found = soundness.flaws(values, unreadable(values))
    return found + plugin_flaws(session.agent_profile.agent_type) + _lacks(session, execution)


def unreadable(values: Mapping[str, Any]) -> list[str]:
    """The columns whose secret no key opens, or whose JSON has not its shape."""
    return [name for name, value in values.items() if isinstance(value, Closed) or is_misfit(value)]


def plugin_flaws(agent_type: str) -> list[str]:
    """An agent type of which no file is there: nobody can say what its agents can do."""
    return [] if agent_type in agent_types() else [f"agent_type is {agent_type!r}"]


def _lacks(session: TaskSession, execution: ExecutorRunning | None) -> list[str]:
    dangles = session.agent_execution_id is not None and execution is None
    return [f"agent_execution_id names no execution: {session.agent_execution_id}"] if dangles else []


def _columns(row: Model) -> dict[str, Any]:
    """The loaded columns as they are, past the attributes that refuse a closed secret."""
    return {name: value for name, value in row.__dict__.items() if not name.startswith("_")}

"""The processes that an agent's turns have left running: they keep the session awake, and end with its agent."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from sessions_app.agents.events import ProcessesReported
from sessions_app.models import SessionTransaction, TaskSession
from sessions_app.redaction.visible_text import make_visible

_KEY: Final = "background_processes"
"""Metadata key: ``{launch_id, processes: [{command, since}], count}``."""
_MAX_LISTED: Final = 20
_MAX_COMMAND: Final = 200


def record_processes(transaction: SessionTransaction, line: Mapping[str, Any]) -> None:
    """Store the processes in a journal line of kind ``agent.processes``, whose texts an agent can write."""
    reported = line.get("processes")
    if isinstance(reported, list):
        processes = [_parse_process(each) for each in reported[:_MAX_LISTED]]
    else:
        processes = []
    listed = [process for process in processes if process is not None]
    count = line.get("count")
    if isinstance(count, bool) or not isinstance(count, int) or count < len(listed):
        count = len(listed)
    count = min(count, 10**6)
    stored = {"launch_id": transaction.session.launch_id, "processes": listed, "count": count}
    if transaction.session.metadata.get(_KEY) == stored:
        return
    transaction.set_fields(metadata={**transaction.session.metadata, _KEY: stored})
    transaction.record_event(ProcessesReported(processes=listed, count=count))


def processes_json(session: TaskSession, *, is_running: bool) -> dict[str, Any]:
    """Return ``background_processes`` and ``background_process_count`` of a status; none without a running agent."""
    known = session.metadata.get(_KEY)
    if not is_running or not isinstance(known, dict) or known.get("launch_id") != session.launch_id:
        return {"background_processes": [], "background_process_count": 0}
    return {"background_processes": known.get("processes", []), "background_process_count": known.get("count", 0)}


def _parse_process(reported: Any) -> dict[str, str] | None:
    """Return a reported process with its command on one line of visible characters; None if it is none."""
    if not isinstance(reported, Mapping):
        return None
    command, since = reported.get("command"), reported.get("since")
    if not isinstance(command, str) or not isinstance(since, str):
        return None
    visible = " ".join(make_visible(command[: 2 * _MAX_COMMAND]).split())[:_MAX_COMMAND]
    try:
        started_at = datetime.fromisoformat(since)
        if not visible or started_at.tzinfo is None:  # without a zone it would be read in that of the server
            return None
        return {"command": visible, "since": started_at.astimezone(UTC).isoformat()}
    except (ValueError, OverflowError):  # hostile times overflow in the conversion
        return None

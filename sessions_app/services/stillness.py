"""Why nothing is happening in a session, from its status."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from sessions_app.domain.attention import AttentionKind
from sessions_app.domain.stillness import StillFacts, stillness
from sessions_app.domain.tokens import WaitKind
from sessions_app.models import Supervisor, TaskSession


def stillness_json(
    session: TaskSession, status: Mapping[str, Any], open_kinds: Collection[str]
) -> dict[str, Any] | None:
    """``{reason, text, next_step, until}``, or None; a query only where something waits for a supervisor."""
    found = stillness(_facts(session, status, open_kinds))
    if found is None:
        return None
    until = found.until.isoformat() if found.until else None
    return {"reason": str(found.reason), "text": found.text, "next_step": found.next_step, "until": until}


def _facts(session: TaskSession, status: Mapping[str, Any], open_kinds: Collection[str]) -> StillFacts:
    wait, line = status["wait"], status["start_wait"]
    outside = bool(wait and wait["kind"] != WaitKind.PERMISSION)
    return StillFacts(
        session_state=status["state"],
        desired_state=status["desired_state"],
        work_state=status["work_state"],
        agent_running=status["is_agent_running"],
        policy=status["policy"],
        policy_source=status["policy_source"],
        recovering=status["recovering"],
        supervised=not _waits_for_one(status) or Supervisor.objects.alive().exists(),
        starting=status["starting"],
        start_reason=line["reason"] if line else "",
        starts_before=line["before"] if line else 0,
        pending_permissions=status["pending_permissions"],
        waits_outside=outside,
        held_prompts=status["held_prompts"],
        queued_prompts=status["queued_prompts"],
        needs_resume=status["needs_resume"],
        error_code=status["error_code"],
        error_message=status["error_message"],
        owner_left=AttentionKind.OWNER_LEFT in open_kinds,
        asleep=status["asleep"],
        attempts=session.start_attempts,
        until=session.next_restart_at,
        wait_until=datetime.fromisoformat(wait["deadline"]) if outside and wait["deadline"] else None,
        task_over=session.task.is_over,
    )


def _waits_for_one(status: Mapping[str, Any]) -> bool:
    """Whether anything is to be carried out that only a supervisor does."""
    return bool(status["starting"] or status["queued_prompts"] or status["recovering"] or status["start_wait"])

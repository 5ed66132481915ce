"""The limits of an agent's output that is stored, and how a user raises them for one turn or session."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Final

from django.conf import settings
from django.contrib.auth.models import User

from executors_app.models import ExecutorRunning
from sessions_app.kernel.services.errors import Conflict
from sessions_app.models import session_transaction
from sessions_app.turns.events import OutputResumed

TURN: Final = "turn"
SESSION: Final = "session"
LIMIT_SETTINGS: Final[Mapping[str, str]] = {TURN: "KANDEV_TURN_OUTPUT_LIMIT", SESSION: "KANDEV_SESSION_OUTPUT_LIMIT"}
"""The setting of each ``ExecutorRunning.output_limit``, in bytes; 0: no limit."""
STOP_REASON: Final = "output_limit"
"""Reason of the stop of an agent that exceeds a limit with lines that must be stored."""


def allowed_bytes(execution: ExecutorRunning, limit: str) -> int:
    """Return the bytes that may be stored; 0: any number."""
    default = int(getattr(settings, LIMIT_SETTINGS[limit]))
    if not default:
        return 0
    allowed = execution.turn_output_allowed if limit == TURN else execution.output_allowed
    return max(default, allowed)


def allow_more_output(session_id: uuid.UUID, by: User) -> None:
    """Let the log take as much output again as the limit that was reached; raises Conflict if none was."""
    with session_transaction(session_id) as transaction:
        execution = transaction.execution
        if execution is None or not execution.output_limit:
            raise Conflict("The output of this session has not reached a limit.")
        name = LIMIT_SETTINGS[execution.output_limit]
        more = int(getattr(settings, name))
        if execution.output_limit == TURN:
            execution.turn_output_allowed = execution.turn_output_bytes + more
        else:
            execution.output_allowed = execution.output_bytes + more
        execution.output_limit = ""
        execution.save(update_fields=["turn_output_allowed", "output_allowed", "output_limit"])
        transaction.record_event(OutputResumed(limit=name, reason="allowed", by=by.get_username()))

"""Whether the agent of an open turn waits by itself for the end of a limit, by the last that it has said."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django.utils import timezone

from executors_app.agents.own_waits import TEXT_LIMIT, find_own_wait
from sessions_app.kernel.rules.states import RunState, TurnOrigin
from sessions_app.models import SessionEvent, Turn
from sessions_app.stream.models import last_text, messages_of
from sessions_app.suspensions.rules.suspension import LONGEST_OWN_WAIT

AFTER_WAIT: Final = timedelta(minutes=10)
"""How long after the end of its wait it may still be silent."""
_OUTPUT: Final = ("agent", "thought", "tool")
"""Roles of messages after whose text an agent no longer waits."""


@dataclass(frozen=True, slots=True)
class OpenOwnWait:
    """An agent waits by itself, inside its open turn."""

    since: datetime
    until: datetime | None
    """None: it does not say until when."""


def find_open_wait(turn: Turn | None) -> OpenOwnWait | None:
    """Return the wait that the agent has announced last in its open turn; None if it does not wait, or no longer.

    At most four queries, none if no prompted turn is running.
    """
    if turn is None or turn.state != RunState.RUNNING or turn.origin == TurnOrigin.AGENT or not turn.has_process:
        return None
    newest = messages_of(turn).filter(role__in=_OUTPUT).order_by("-seq").only("id", "role", "updated_seq").first()
    if newest is None or newest.role != "agent":
        return None
    event = SessionEvent.objects.filter(session_id=turn.session_id, seq=newest.updated_seq)
    since = event.values_list("at", flat=True).first()
    if since is None:
        return None
    text = last_text(newest.id, TEXT_LIMIT)
    wait = find_own_wait(text, since, timezone.get_default_timezone())
    if wait is None or text[wait.end :].strip():
        return None
    if timezone.now() >= (wait.until or since + LONGEST_OWN_WAIT) + AFTER_WAIT:
        return None
    return OpenOwnWait(since, wait.until)

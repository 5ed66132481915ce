"""What a turn that is open does at this moment, as far as its agent has reported it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.conf import settings
from django.db.models import CharField
from django.db.models.fields.json import KT
from django.db.models.functions import Cast, Substr

from sessions_app.kernel.rules.states import RunState
from sessions_app.models import TaskSession, Turn

TITLE_SHOWN: Final = 200
"""Characters of a tool's title that are read."""
_WORKING: Final = "Working"
_WORDS: Final = {"thought": "Thinking", "agent": "Writing"}


@dataclass(frozen=True, slots=True)
class Activity:
    """What an open turn does."""

    what: str
    """Words of ours, or the title of the newest tool call without a result."""
    since: datetime
    """When the turn began, by the control plane's clock."""
    retry: str
    """Which retry of a prompt it is; empty if it is none."""


def current_activity(session: TaskSession) -> Activity | None:
    """Return what the agent works on; None if it does not, or waits for somebody. Two queries at most."""
    turn = (
        session.runs.filter(ended_at=None, has_process=True, state=RunState.RUNNING)
        .select_related("prompt")
        .only("session_id", "started_at", "recorded_at", "prompt__attempt")
        .first()
    )
    if turn is None:
        return None
    return Activity(_newest_work(session), turn.begun_at, _retry_words(turn))


def _newest_work(session: TaskSession) -> str:
    """Return what the newest unfinished message says of the work."""
    title = Substr(Cast(KT("payload__title"), CharField()), 1, TITLE_SHOWN)
    rows = session.messages.filter(complete=False, role__in=("tool", *_WORDS)).order_by("-seq")
    newest = rows.values_list("role", title).first()
    if newest is None:
        return _WORKING
    role, shown = newest
    if role == "tool":
        return shown or "Using a tool"
    return _WORDS[role]


def _retry_words(turn: Turn) -> str:
    if turn.prompt is None or not turn.prompt.attempt:
        return ""
    return f"retry {turn.prompt.attempt} of {max(settings.KANDEV_TURN_RETRIES, turn.prompt.attempt)}"

"""Waits for an external result as open waits."""

from __future__ import annotations

from typing import Final

from django.db.models import F, QuerySet

from sessions_app.kernel.rules.states import RunState
from sessions_app.models import Turn
from sessions_app.sessions.rules.situation_facts import Label
from sessions_app.waits.rules.open_waits import Actor, WaitDetails
from sessions_app.waits.rules.wait_keys import REQUESTED_KINDS, WaitKind
from sessions_app.waits.sources import WaitSource

_WAKE_UP: Final = (
    "The result becomes the agent’s next prompt, once, and wakes the agent. At a deadline the wait ends without it, "
    "and the team decides."
)


def _open_waits(kind: WaitKind) -> QuerySet[Turn]:
    # ``ended_at``: for its index.
    return Turn.objects.filter(ended_at=None, state=RunState.WAITING, has_process=False, wait_kind=kind)


def _describe(row: Turn) -> WaitDetails:
    return WaitDetails(Actor.SYSTEM, row.wait_reason or REQUESTED_KINDS[row.wait_kind], _WAKE_UP)


def _source(kind: WaitKind) -> WaitSource:
    _, noun = REQUESTED_KINDS[kind].split(" ", 1)
    return WaitSource(
        kind=kind,
        label=Label(noun.capitalize()),
        rows=lambda: _open_waits(kind),
        describe=_describe,
        since="started_at",
        deadline=F("deadline_at"),
    )


WAIT_SOURCES: Final = tuple(_source(WaitKind(kind)) for kind in REQUESTED_KINDS)

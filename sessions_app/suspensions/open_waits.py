"""Suspensions as open waits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django.db import models
from django.db.models import F

from sessions_app.attention.rules import notices
from sessions_app.kernel.rules.states import TurnOrigin
from sessions_app.models import Suspension
from sessions_app.sessions.rules.situation_facts import Label
from sessions_app.suspensions.continuations import decide_continuation
from sessions_app.suspensions.rules.suspension import Continuation, headline
from sessions_app.waits.rules.open_waits import Actor, WaitDetails
from sessions_app.waits.sources import WaitSource

_QUEUE: Final = "At the deadline, prompts in the queue are sent, once."
_WAKE_UPS: Final[Mapping[Continuation, str]] = {
    Continuation.AGAIN: f"{_QUEUE} First the prompt of the last turn is sent again, unless another turn has followed.",
    Continuation.CONTINUE: f"{_QUEUE} First the agent is asked to continue its turn, unless another has followed.",
    Continuation.AGENT: f"{_QUEUE} The agent says that it goes on with its turn by itself.",
    Continuation.WITHDRAWN: f"{_QUEUE} Its turn is not continued.",
    Continuation.NOTHING: f"{_QUEUE} Its turn is not continued automatically.",
}


def _describe(row: Any) -> WaitDetails:
    reason = f"{headline(row.reason)}."
    if row.wakes_at is None:
        return WaitDetails(Actor.PERSON, reason, "A prompt or “Go on now” ends it, once.")
    # Whether another turn has followed takes a query for each row, so the sentences leave that open.
    planned = decide_continuation(row.agent_type, row, has_prompt=row.origin != TurnOrigin.AGENT)
    return WaitDetails(Actor.CLOCK, reason, _WAKE_UPS[planned])


def _open_rows() -> models.QuerySet[Suspension]:
    return Suspension.objects.filter(ended_at=None).annotate(
        agent_type=F("session__agent_profile__agent_type"), origin=F("run__origin")
    )


WAIT_SOURCES: Final = (
    WaitSource(
        kind="suspension",
        label=Label("Suspended", "ask"),
        rows=_open_rows,
        describe=_describe,
        since="began_at",
        deadline=F("wakes_at"),
        item_prefix=notices.suspended_key(""),
    ),
)

"""Suspensions as open waits."""

from __future__ import annotations

from typing import Final

from django.db.models import F

from sessions_app.attention.rules import notices
from sessions_app.models import Suspension
from sessions_app.sessions.rules.situation_facts import Label
from sessions_app.suspensions.rules.suspension import headline
from sessions_app.waits.rules.open_waits import Actor, WaitDetails
from sessions_app.waits.sources import WaitSource


def _describe(row: Suspension) -> WaitDetails:
    reason = f"{headline(row.reason)}."
    if row.wakes_at is None:
        return WaitDetails(Actor.PERSON, reason, "A prompt or “Go on now” ends it, once.")
    return WaitDetails(Actor.CLOCK, reason, "At the deadline the session goes on, once, as its policy says.")


WAIT_SOURCES: Final = (
    WaitSource(
        kind="suspension",
        label=Label("Suspended", "ask"),
        rows=lambda: Suspension.objects.filter(ended_at=None),
        describe=_describe,
        since="began_at",
        deadline=F("wakes_at"),
        item_prefix=notices.suspended_key(""),
    ),
)

"""Open waits of every kind as one record: who is expected to act, until when, and what then happens (pure)."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from sessions_app.sessions.rules.situation_facts import Label

REASON_LIMIT: Final = 500
"""Characters of a reason; the session's page has the whole."""


class Actor(StrEnum):
    """Who is expected to act, so that a wait ends."""

    PERSON = "person"
    """The session's owner; the team if the owner can no longer write in it."""
    TEAM = "team"
    SYSTEM = "system"
    """Whoever holds the key of the wait: a build, another program."""
    CLOCK = "clock"
    """Nobody: the wait ends by itself at its deadline."""


@dataclass(frozen=True, slots=True)
class WaitDetails:
    """What a kind of wait says about one of its rows."""

    actor: Actor
    reason: str
    """For what it waits, unless an inbox item says it."""
    wake_up: str
    """A sentence: what happens once when it ends."""


@dataclass(frozen=True, slots=True)
class OpenWaitRecord:
    """One open wait, whatever its kind."""

    kind: str
    label: Label
    id: str
    item_key: str
    """The key of its inbox item; empty: it needs nobody before its deadline."""
    session_id: uuid.UUID
    task_id: uuid.UUID
    task_title: str
    team: str
    since: datetime
    deadline: datetime | None
    """When it ends by itself; None: never."""
    actor: Actor
    actor_name: str
    """The user or the team; empty for a system and the clock."""
    reason: str
    wake_up: str

    @property
    def path(self) -> str:
        """The path of the page where it can be answered or ended."""
        return f"/tasks/{self.task_id}/sessions/{self.session_id}/"

    @property
    def actor_text(self) -> str:
        """Who is expected to act, in words."""
        if self.actor is Actor.PERSON:
            return self.actor_name
        if self.actor is Actor.TEAM:
            return f"anybody in {self.actor_name}"
        return _ACTOR_TEXTS[self.actor]

    @property
    def sentence(self) -> str:
        """Since when, until when and for whom it is open, as one line of plain text."""
        until = "without a deadline"
        if self.deadline is not None:
            until = f"until {_minute(self.deadline)}"
        return f"open since {_minute(self.since)}, {until}; expected to act: {self.actor_text}"

    def age(self, now: datetime) -> float:
        """Return for how many seconds it has been open; 0 if the clock was changed."""
        return max((now - self.since).total_seconds(), 0.0)


_ACTOR_TEXTS: Final = {Actor.SYSTEM: "an outside system", Actor.CLOCK: "the clock"}


def _minute(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def shorten_reason(reason: str) -> str:
    """Return a reason on one line, cut at ``REASON_LIMIT`` characters."""
    line = " ".join(reason[: 4 * REASON_LIMIT].split())
    if len(line) <= REASON_LIMIT:
        return line
    return f"{line[: REASON_LIMIT - 1]}…"

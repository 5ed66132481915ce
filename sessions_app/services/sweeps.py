"""Asking for a sweep between the loop's own passes; and what one came to, for the sessions of a user's teams."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.db import transaction
from django.db.models import QuerySet

from sessions_app.models import RecoverySweep, SweepOutcome, SweepRequest, TaskSession, wakeups
from sessions_app.services.catalogue import SECRETS
from sessions_app.services.sweep_results import SKIPPED, UNDER_WAY, results_of

_SECRETS: Final = tuple(f"session__{name}" for name in SECRETS)
__all__ = ["SKIPPED", "UNDER_WAY", "Found", "Wanted", "ask_for_sweep", "counts_of", "outcomes_of", "report_for"]


def ask_for_sweep(by: Any, *, dry_run: bool = False, sessions: Iterable[uuid.UUID] = ()) -> SweepRequest:
    """Write down that a sweep is wanted, of these sessions or of whatever claims to run, and wake the supervisor."""
    with transaction.atomic():
        asked = SweepRequest.objects.create(by=by, dry_run=dry_run, sessions=[str(one) for one in sessions])
        wakeups.ring_on_commit()
    return asked


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which rows of a sweep are looked for; nothing: all."""

    text: str = ""
    """In the title of the task or the name of the agent."""
    seen: str = ""
    """alive, dead or unknown."""
    came: str = ""
    """The kind of receipt, ``under_way`` or ``skipped``."""


@dataclass(frozen=True, slots=True)
class Found:
    """Rows of a sweep with what they came to."""

    rows: Sequence[tuple[SweepOutcome, str]]
    """Each with its kind of receipt, ``under_way`` or ``skipped``."""
    count: int
    """Of those that fit."""
    counts: Mapping[str, int]
    """By result, of all that the user may see."""

    @property
    def total(self) -> int:
        """How many the user may see."""
        return sum(self.counts.values())


def outcomes_of(user: Any, sweep: RecoverySweep, wanted: Wanted, *, start: int, limit: int) -> Found:
    """The rows of ``sweep`` that fit, from the number ``start`` on; a constant number of queries."""
    mine = SweepOutcome.objects.visible_to(user).filter(sweep=sweep)
    told = results_of(user, [sweep])[sweep.id]
    came = {one.row: one.kind for one in told}
    fits = _named(mine, wanted.text) if wanted.text else None
    chosen = [
        one.row
        for one in told
        if wanted.seen in ("", one.observed) and wanted.came in ("", one.kind) and (fits is None or one.row in fits)
    ]
    shown = mine.select_related("session__task", "session__agent_profile").defer(*_SECRETS)
    rows = shown.in_bulk(chosen[start : start + limit])
    return Found([(rows[one], came[one]) for one in chosen[start : start + limit]], len(chosen), Counter(came.values()))


def _named(rows: QuerySet[SweepOutcome], text: str) -> set[int]:
    titled = rows.filter(session__task__title__icontains=text) | rows.filter(
        session__agent_profile__name__icontains=text
    )
    return set(titled.values_list("id", flat=True))


def counts_of(user: Any, sweeps: Sequence[RecoverySweep]) -> dict[uuid.UUID, Mapping[str, int]]:
    """How many of the user's sessions came to what, by sweep."""
    return {key: Counter(one.kind for one in rows) for key, rows in results_of(user, sweeps).items()}


def report_for(user: Any, asked: SweepRequest) -> list[dict[str, Any]]:
    """The rows of a request's report whose sessions are of the user's teams."""
    rows: list[dict[str, Any]] = (asked.report or {}).get("sessions", [])
    ids = [row["session_id"] for row in rows]
    mine = set(map(str, TaskSession.objects.visible_to(user).filter(id__in=ids).values_list("id", flat=True)))
    return [row for row in rows if row["session_id"] in mine]

"""Asking for a sweep between the loop's own passes; and what one came to, for the sessions of a user's teams."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.db import transaction
from django.db.models import QuerySet

from sessions_app.models import RecoverySweep, SweepOutcome, SweepRequest, TaskSession, wakeups
from sessions_app.services.catalogue import SECRETS
from sessions_app.services.last_restart import STARTS, receipts_since

_SECRETS: Final = tuple(f"session__{name}" for name in SECRETS)
SKIPPED: Final = "skipped"
UNDER_WAY: Final = "under_way"


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
    total: int
    """Of all that the user may see."""


def outcomes_of(user: Any, sweep: RecoverySweep, wanted: Wanted, *, start: int, limit: int) -> Found:
    """The rows of ``sweep`` that fit, from the number ``start`` on; a constant number of queries."""
    mine = SweepOutcome.objects.visible_to(user).filter(sweep=sweep)
    told = list(mine.order_by("id").values_list("id", "session_id", "observed", "agent_action", "receipt_kind"))
    later = receipts_since(user, sweep, [one[1] for one in told if one[3] in STARTS and not one[4]])
    came = {row: _came_to(session, action, kind, later) for row, session, _, action, kind in told}
    fits = _named(mine, wanted.text) if wanted.text else None
    chosen = [
        row
        for row, _, observed, _, _ in told
        if wanted.seen in ("", observed) and wanted.came in ("", came[row]) and (fits is None or row in fits)
    ]
    shown = mine.select_related("session__task", "session__agent_profile").defer(*_SECRETS)
    rows = shown.in_bulk(chosen[start : start + limit])
    return Found([(rows[one], came[one]) for one in chosen[start : start + limit]], len(chosen), len(told))


def _named(rows: QuerySet[SweepOutcome], text: str) -> set[int]:
    titled = rows.filter(session__task__title__icontains=text) | rows.filter(
        session__agent_profile__name__icontains=text
    )
    return set(titled.values_list("id", flat=True))


def _came_to(session_id: uuid.UUID, action: str, kind: str, later: Mapping[uuid.UUID, str]) -> str:
    if kind:
        return kind
    if action == "reattach":
        return "reattached"
    return later.get(session_id, UNDER_WAY) if action in STARTS else SKIPPED


def report_for(user: Any, asked: SweepRequest) -> list[dict[str, Any]]:
    """The rows of a request's report whose sessions are of the user's teams."""
    rows: list[dict[str, Any]] = (asked.report or {}).get("sessions", [])
    ids = [row["session_id"] for row in rows]
    mine = set(map(str, TaskSession.objects.visible_to(user).filter(id__in=ids).values_list("id", flat=True)))
    return [row for row in rows if row["session_id"] in mine]

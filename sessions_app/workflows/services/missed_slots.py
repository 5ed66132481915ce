"""What is told of slots of a schedule that were missed, and what became of them."""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Any, Final

from django.utils import timezone

from sessions_app.workflows.models import Workflow
from sessions_app.workflows.nodes.trigger import MissedOutcome, find_due_slots
from sessions_app.workflows.services.trigger_confirmation import confirmed_parts, parse_triggers

log = logging.getLogger(__name__)
MISSED_FIELDS: Final = ("missed_count", "missed_from", "missed_until", "missed_run", "missed_outcome")


def missed_columns(row: Workflow, first: datetime, last: datetime, count: int) -> dict[str, Any]:
    """Return the columns that tell of missed slots, without what became of them; nothing if none was missed."""
    if not count:
        return {}
    log.warning("workflow %s: %d scheduled runs were missed from %s to %s", row.id, count, first, last)
    return {"missed_count": count, "missed_from": first, "missed_until": last, "missed_run": None}


def note_dropped_slots(row: Workflow) -> None:
    """Note the slots of a locked row that are due as its schedule is changed or switched off: none of them starts.

    The schedule is read as it was confirmed, because the text may be another one by now.
    """
    now = timezone.now()
    if not row.triggers_enabled or row.next_run_at is None or row.next_run_at > now:
        return
    triggers = parse_triggers(str(confirmed_parts(row).get("triggers", "")))
    if triggers is None or not triggers.crons:
        return
    slots = find_due_slots(triggers, row.next_run_at, now)
    for name, value in missed_columns(row, slots.first, slots.end, slots.count).items():
        setattr(row, name, value)
    row.missed_outcome = MissedOutcome.SCHEDULE_CHANGED

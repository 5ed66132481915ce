"""End waits whose time has passed."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Final

from django.utils import timezone

from sessions_app.kernel.guarded_jobs import guard_job
from sessions_app.kernel.rules.states import WAITING_PROMPT_STATES
from sessions_app.models import Prompt, WaitKey, session_transaction
from sessions_app.permissions.services import send_timeout_to_agent
from sessions_app.waits.models import expire_wait_key, interrupt_external_wait, reach_crash_points
from sessions_app.waits.rules.wait_keys import WaitKind

DEADLINE_BATCH: Final = 100
"""Waits that one pass ends at most; the next pass follows within a second."""


def expire_waits() -> int:
    """Expire every wait key whose time has passed, and end the wait; return how many."""
    # In random order: waits whose end fails each time would otherwise keep all others from theirs.
    rows = WaitKey.objects.due(timezone.now()).order_by("?")
    due = list(rows.values_list("id", "session_id")[:DEADLINE_BATCH])
    return sum(guard_job(session_id, "its wait", _expire_wait, key_id, session_id) for key_id, session_id in due)


def _expire_wait(key_id: uuid.UUID, session_id: uuid.UUID) -> bool:
    with session_transaction(session_id) as transaction:
        key = expire_wait_key(transaction, key_id)
        if key is None:
            return False
        if key.wait_kind == WaitKind.PERMISSION:
            send_timeout_to_agent(transaction, key.wait_id)
        elif transaction.open_run is not None and transaction.open_run.id == key.run_id:
            interrupt_external_wait(transaction, "wait_timeout")
        reach_crash_points(transaction)
    return True


def next_deadline() -> datetime | None:
    """Return when the next wait expires; now while prompts wait for an agent, which may become overdue or due."""
    if Prompt.objects.filter(state__in=WAITING_PROMPT_STATES).exists():
        return timezone.now()
    waits_with_end = WaitKey.objects.unsettled().filter(expires_at__isnull=False).order_by("expires_at")
    return waits_with_end.values_list("expires_at", flat=True).first()

"""Report prompts that have waited for too long."""

from __future__ import annotations

import uuid
from collections import defaultdict
from typing import Final

from django.db import IntegrityError
from django.db.models import CharField, Exists, OuterRef, Value
from django.db.models.functions import Cast, Concat
from django.utils import timezone

from sessions_app.attention.services.inbox import overdue_prompts
from sessions_app.kernel.guarded_jobs import guard_job
from sessions_app.kernel.rules.states import (
    SessionState,
)
from sessions_app.models import (
    PLACEMENT_WAIT,
    QUEUED_FOR_CAPACITY,
    REFUSED_BY_HOST,
    IntentKind,
    SessionEvent,
    SessionTransaction,
    session_transaction,
)
from sessions_app.prompts.events import PromptOverdue
from sessions_app.recovery.services.assessment import assess_session
from sessions_app.sessions.rules.situation_facts import DISK_CODES

_EVENT_KEY: Final = "prompt.overdue:"
OVERDUE_BATCH: Final = 200
"""Prompts that one pass handles at most; the next pass follows within a second."""


def report_overdue_prompts() -> int:
    """Record ``session.prompt.overdue`` once for every overdue prompt; return how many."""
    reported = SessionEvent.objects.filter(once=Concat(Value(_EVENT_KEY), Cast(OuterRef("id"), CharField())))
    # In random order: prompts whose report fails each time would otherwise keep all others from theirs.
    new = overdue_prompts().exclude(Exists(reported)).order_by("?")
    by_session = defaultdict(list)
    for key, session_id in new.values_list("id", "session_id")[:OVERDUE_BATCH]:
        by_session[session_id].append(key)
    return sum(
        guard_job(session_id, "its overdue prompts", _record_overdue, session_id, keys)
        for session_id, keys in by_session.items()
    )


def _event_key(key: int) -> str:
    return f"{_EVENT_KEY}{key}"


def _record_overdue(session_id: uuid.UUID, keys: list[int]) -> int:
    try:
        with session_transaction(session_id) as transaction:
            rows = list(overdue_prompts().filter(id__in=keys).defer("text"))
            reason = _overdue_reason(transaction) if rows else ""
            for row in rows:
                overdue = PromptOverdue(
                    message_id=row.message_id,
                    kind=row.kind,
                    state=row.state,
                    reason=reason,
                    waited_seconds=round((timezone.now() - row.created_at).total_seconds()),
                )
                transaction.record_event(overdue, _event_key(row.id))
    except IntegrityError:
        return 0  # the event's unique key exists: another supervisor has just recorded it
    return len(rows)


def _overdue_reason(transaction: SessionTransaction) -> str:
    """Return a code for what the prompt waits for: the session's error, an open start, or why there is none."""
    session = transaction.session
    # An agentctl that cannot write its journal takes no prompts, but its agent runs and the session has no other error.
    if session.error_code and (session.state == SessionState.ERROR or session.error_code in DISK_CODES):
        return session.error_code
    order = session.intents.filter(kind=IntentKind.START, done_at=None).first()
    if order is not None:
        if order.payload.get(QUEUED_FOR_CAPACITY):
            return QUEUED_FOR_CAPACITY
        if order.payload.get(REFUSED_BY_HOST):
            return REFUSED_BY_HOST
        if order.claimed_generation is None and order.payload.get(PLACEMENT_WAIT):
            return PLACEMENT_WAIT
        return "starting"
    return str(assess_session(session).resume_reason)

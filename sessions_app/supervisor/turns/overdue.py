"""Saying of a prompt that no agent could be had for it in time; it stays in the queue, and can be withdrawn."""

from __future__ import annotations

import logging
import uuid
from collections import defaultdict

from django.db import IntegrityError
from django.utils import timezone

from sessions_app.domain.states import SessionState
from sessions_app.models import QUEUED_FOR_CAPACITY, Draft, Prompt, SessionEvent, writing
from sessions_app.services.assessment import assess_session
from sessions_app.services.overdue import overdue_prompts

log = logging.getLogger(__name__)
AT_ONCE = 200
"""Prompts that one pass looks at; the next one is not far."""


def say_overdue() -> int:
    """Say ``session.prompt.overdue`` once of every prompt that is; how many."""
    found = list(overdue_prompts().order_by("id").values_list("id", "session_id")[:AT_ONCE])
    known = set(SessionEvent.objects.filter(once__in=[_once(key) for key, _ in found]).values_list("once", flat=True))
    by_session = defaultdict(list)
    for key, session_id in found:
        if _once(key) not in known:
            by_session[session_id].append(key)
    return sum(_say(session_id, keys) for session_id, keys in by_session.items())


def _once(key: int) -> str:
    return f"prompt.overdue:{key}"


def _say(session_id: uuid.UUID, keys: list[int]) -> int:
    try:
        with writing(session_id) as draft:
            rows = list(overdue_prompts().filter(id__in=keys))
            for row in rows:
                draft.say(
                    "session.prompt.overdue",
                    _once(row.id),
                    message_id=row.message_id,
                    kind=row.kind,
                    state=row.state,
                    reason=_reason(draft),
                    waited_seconds=_waited(row),
                )
    except IntegrityError:
        return 0  # another supervisor has just said it
    except Exception:  # one bad session never stops the others
        log.exception("session %s: its overdue prompts could not be told", session_id)
        return 0
    return len(rows)


def _waited(row: Prompt) -> int:
    return round((timezone.now() - row.created_at).total_seconds())


def _reason(draft: Draft) -> str:
    """What it waits for, in a code: the error, the start under way, or why none is."""
    session = draft.session
    if session.state == SessionState.ERROR and session.error_code:
        return session.error_code
    order = session.intents.filter(kind="start", done_at=None).first()
    if order is not None:
        return QUEUED_FOR_CAPACITY if order.payload.get(QUEUED_FOR_CAPACITY) else "starting"
    return str(assess_session(session).resume_reason)

"""Agents that were asked to cancel their turn and go on with it: reported, and never ended for it."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from django.utils import timezone

from sessions_app.domain.states import OPEN_RUN_STATES
from sessions_app.models import CANCEL_IGNORED, Intent, IntentKind, Lease, LeaseLost, Run, writing

log = logging.getLogger(__name__)
IGNORED_AFTER: Final = timedelta(seconds=30)
"""An agent that heeds a cancel ends its turn within seconds."""
DELIVERED: Final = "done"
"""Outcome of a cancel that agentctl has passed on."""


class _Ignored(NamedTuple):
    run: Run
    asked_at: datetime


def notice_ignored_cancels(held: Mapping[uuid.UUID, Lease]) -> int:
    """Say ``session.run.cancel_ignored`` once of each turn of these sessions that outlives its cancel; how many."""
    if not held:
        return 0
    return sum(_say(one, held[one.run.session_id]) for one in _ignored(held))


def _ignored(sessions: Iterable[uuid.UUID]) -> list[_Ignored]:
    rows = Run.objects.filter(state__in=OPEN_RUN_STATES, has_process=True, session_id__in=sessions)
    turns = {run.session_id: run for run in rows.select_related("session").order_by("started_at")}
    asked = Intent.objects.filter(session_id__in=turns, kind=IntentKind.CANCEL, outcome=DELIVERED)
    found: dict[uuid.UUID, _Ignored] = {}
    for order in asked.filter(done_at__lte=timezone.now() - IGNORED_AFTER).order_by("-done_at"):
        run = turns[order.session_id]
        told = run.session.metadata.get(CANCEL_IGNORED, {}).get("run_id")
        if order.done_at is not None and order.payload.get("message_id") == run.message_id and told != str(run.id):
            found[order.session_id] = _Ignored(
                run, order.done_at
            )  # the last one that stays is the first that was asked
    return list(found.values())


def _say(one: _Ignored, lease: Lease) -> bool:
    try:
        with writing(one.run.session_id, lease) as draft:
            if draft.open_turn is None or draft.open_turn.id != one.run.id:
                return False  # it has ended meanwhile
            said = {"run_id": str(one.run.id), "since": one.asked_at.isoformat()}
            draft.set(metadata={**draft.session.metadata, CANCEL_IGNORED: said})
            draft.say("session.run.cancel_ignored", message_id=one.run.message_id, **said)
    except LeaseLost:
        return False
    except Exception:  # one bad session never stops the others
        log.exception("session %s: that its agent ignores a cancel could not be told", one.run.session_id)
        return False
    return True

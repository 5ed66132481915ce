"""A session's log for readers: one line as JSON, and the recovery timeline."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db.models import F, QuerySet

from executors_app.wire.executions import Observed
from sessions_app.events import EVENT_CLASSES
from sessions_app.kernel.events.session import StateChanged
from sessions_app.kernel.rules.states import SessionState
from sessions_app.models import ContinuityReceipt, Prompt, SessionEvent, SweepOutcome, TaskSession, Turn
from sessions_app.starts.events import AgentctlStopped, AgentExited, ReceiptWritten
from sessions_app.turns.events import RunInterrupted


def event_json(event: SessionEvent, session: TaskSession) -> dict[str, Any]:
    """Return one line of the log of ``session`` as JSON."""
    return {
        "type": "event",
        "event": event.name,
        "seq": event.seq,
        "epoch": session.epoch,
        "session_id": str(session.id),
        "task_id": str(session.task_id),
        "at": event.at.isoformat(),
        "payload": event.payload,
    }


EVENTS_PER_PAGE: Final = 60
"""Events of the log on one page."""
MAX_SWEEPS: Final = 100
"""Maximum number of sweeps on one page."""
MAX_RUNS: Final = 400
"""Maximum number of turns in the chart of a page."""
TIMELINE_EVENTS: Final = tuple(event.name for event in EVENT_CLASSES.values() if event.is_in_timeline())
"""Names of the events that the timeline shows."""
_PROCESS: Final = tuple(event.name for event in (ReceiptWritten, AgentExited, AgentctlStopped, RunInterrupted))


@dataclass(frozen=True, slots=True)
class TimelinePage:
    """One page of the timeline, newest first in every list."""

    events: Sequence[SessionEvent]
    sweeps: Sequence[SweepOutcome]
    receipts: Mapping[str, ContinuityReceipt]
    """The receipts that the events name, by id."""
    prompts: Mapping[str, Prompt]
    """The prompts that the events name, by message id."""
    older: int | None
    """``before`` of the next page, which is older; None: this is the last one."""


def timeline_page(session: TaskSession, before: int | None = None) -> TimelinePage:
    """Return the newest events of the timeline, or those before the event number ``before``."""
    rows = session.events.filter(name__in=TIMELINE_EVENTS)
    rows = rows.exclude(name=StateChanged.name, payload__to__in=_ROUTINE_STATES)
    since = until = older = None
    if before is not None:
        rows = rows.filter(seq__lt=before)
        until = session.events.filter(seq=before).values_list("at", flat=True).first()
    events = list(rows.order_by("-seq")[: EVENTS_PER_PAGE + 1])
    if len(events) > EVENTS_PER_PAGE:
        events.pop()
        since, older = events[-1].at, events[-1].seq
    return TimelinePage(
        events=events,
        sweeps=_sweeps(session, since, until),
        receipts=_receipts(session, events),
        prompts=_prompts(session, events),
        older=older,
    )


_ROUTINE_STATES: Final = (
    SessionState.CREATED,
    SessionState.STARTING,
    SessionState.RUNNING,
    SessionState.WAITING_FOR_INPUT,
)
"""State changes into these are left out, because turns and receipts already show them."""


def _sweeps(session: TaskSession, since: datetime | None, until: datetime | None) -> list[SweepOutcome]:
    """Return the sweeps between two times; the pages share their bounds, so that each sweep is on one page."""
    rows = SweepOutcome.objects.filter(session=session).select_related("sweep")
    if since is not None:
        rows = rows.filter(sweep__started_at__gte=since)
    if until is not None:
        rows = rows.filter(sweep__started_at__lt=until)
    return list(rows.order_by(F("sweep__started_at").desc(), "-id")[:MAX_SWEEPS])


def _receipts(session: TaskSession, events: Sequence[SessionEvent]) -> dict[str, ContinuityReceipt]:
    ids = []
    for event in events:
        receipt_id = _uuid(event.payload.get("receipt_id"))
        if event.name == ReceiptWritten.name and receipt_id is not None:
            ids.append(receipt_id)
    return {str(receipt.id): receipt for receipt in session.receipts.filter(id__in=ids).with_history()}


def _uuid(value: Any) -> uuid.UUID | None:
    try:
        return uuid.UUID(str(value))
    except ValueError:
        return None


def _prompts(session: TaskSession, events: Sequence[SessionEvent]) -> dict[str, Prompt]:
    ids = {str(event.payload["message_id"]) for event in events if event.payload.get("message_id")}
    rows = session.prompts.filter(message_id__in=ids).select_related("continued_by")
    return {row.message_id: row for row in rows}


def runs_between(session: TaskSession, since: datetime, until: datetime) -> list[Turn]:
    """Return the turns that overlap this time, newest first."""
    rows = session.runs.filter(started_at__lte=until).exclude(ended_at__lt=since)
    return list(rows.order_by("-started_at")[:MAX_RUNS])


def process_events(session: TaskSession, since: datetime, until: datetime) -> list[tuple[datetime, bool]]:
    """Return when the agent's process started (True) or was gone (False), oldest first.

    The event of a receipt is recorded again when the receipt is settled, perhaps by the death of its agent, so only
    the first one is a sign of life.
    """
    rows = session.events.filter(name__in=_PROCESS, at__gte=since, at__lte=until).order_by("seq")
    events = [(at, _is_up(name, payload)) for at, name, payload in _first_events(session, rows, since)]
    found_dead = SweepOutcome.objects.filter(
        session=session, observed=Observed.DEAD, sweep__started_at__gte=since, sweep__started_at__lte=until
    )
    moments = found_dead.order_by("sweep__started_at").values_list("sweep__started_at", flat=True)[:MAX_RUNS]
    events += [(at, False) for at in moments]
    return sorted(events)


def _first_events(
    session: TaskSession, rows: QuerySet[SessionEvent], since: datetime
) -> Iterator[tuple[datetime, str, Mapping[str, Any]]]:
    earlier = session.receipts.filter(created_at__lt=since).values_list("id", flat=True)
    seen = set(map(str, earlier))
    for at, name, payload in rows.values_list("at", "name", "payload")[:MAX_RUNS]:
        receipt = str(payload.get("receipt_id", ""))
        if receipt not in seen or not receipt:
            yield at, name, payload
        seen.add(receipt)


def _is_up(name: str, payload: Mapping[str, Any]) -> bool:
    return name == ReceiptWritten.name and payload.get("kind") not in ("failed", "workspace_only")

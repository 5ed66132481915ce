"""Report turns that are silent or outlive their cancel, and end work outside turns that has been silent.

Rows are first read without a lock, and checked again under the session's lock before anything is written.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

from django.conf import settings
from django.db.models import Exists, OuterRef, Q, Subquery
from django.utils import timezone

from sessions_app.events import names_of
from sessions_app.kernel.guarded_jobs import guard_job
from sessions_app.kernel.rules.states import (
    OPEN_PROMPT_STATES,
    OPEN_RUN_STATES,
    RunState,
    SessionState,
    TurnOrigin,
    WorkState,
)
from sessions_app.models import (
    CANCEL_IGNORED,
    Intent,
    IntentKind,
    Lease,
    Message,
    Prompt,
    SessionEvent,
    TaskSession,
    Turn,
    session_transaction,
)
from sessions_app.permissions.events import PermissionEvent
from sessions_app.stream.conversation import ConversationUpdate, schedule_writes
from sessions_app.stream.events.conversation import MessageEvent
from sessions_app.turns.events import RunCancelIgnored, RunEvent, RunStalled
from sessions_app.turns.own_waits import find_open_wait

log = logging.getLogger(__name__)
IGNORED_AFTER: Final = timedelta(seconds=30)
"""How long a turn may outlive its cancel; agents that obey end it within seconds."""
DELIVERED_OUTCOME: Final = "done"
"""Outcome of a cancel intent that agentctl has passed on to the agent."""


def report_ignored_cancels(held: Mapping[uuid.UUID, Lease]) -> int:
    """Record ``session.run.cancel_ignored`` once for each turn that outlives its cancel; return how many.

    ``held`` are the sessions to check, with the leases under which to write.
    """
    if not held:
        return 0
    return sum(
        guard_job(run.session_id, "its ignored cancel", _record_ignored_cancel, run, requested_at, held[run.session_id])
        for run, requested_at in _load_ignored(held)
    )


def _load_ignored(sessions: Iterable[uuid.UUID]) -> list[tuple[Turn, datetime]]:
    """Return the turns that outlive their cancel, and when it was requested."""
    rows = Turn.objects.filter(state__in=OPEN_RUN_STATES, has_process=True, session_id__in=sessions)
    turns = {run.session_id: run for run in rows.select_related("session").order_by("started_at")}
    cancels = Intent.objects.filter(session_id__in=turns, kind=IntentKind.CANCEL, outcome=DELIVERED_OUTCOME)
    found: dict[uuid.UUID, tuple[Turn, datetime]] = {}
    for order in cancels.filter(done_at__lte=timezone.now() - IGNORED_AFTER).order_by("-done_at"):
        run = turns[order.session_id]
        noted_run = run.session.metadata.get(CANCEL_IGNORED, {}).get("run_id")
        if order.done_at is not None and order.payload.get("message_id") == run.message_id and noted_run != str(run.id):
            # Newest first, so that the oldest cancel of the turn stays.
            found[order.session_id] = (run, order.done_at)
    return list(found.values())


def _record_ignored_cancel(run: Turn, requested_at: datetime, lease: Lease) -> bool:
    with session_transaction(run.session_id, lease) as transaction:
        if transaction.open_turn is None or transaction.open_turn.id != run.id:
            return False  # the turn has ended since it was read
        ignored = {"run_id": str(run.id), "since": requested_at.isoformat()}
        transaction.set_fields(metadata={**transaction.session.metadata, CANCEL_IGNORED: ignored})
        transaction.record_event(RunCancelIgnored(message_id=run.message_id, **ignored))
    return True


_AGENT_EVENTS = Q(name__in=names_of(MessageEvent, RunEvent, PermissionEvent))
"""Events that the agent's turn causes, as opposed to requests to it."""


def report_stalled_turns(held: Mapping[uuid.UUID, Lease]) -> int:
    """Record ``session.run.stalled`` once for each turn that has been silent for too long; return how many.

    ``held`` are the sessions to check, with the leases under which to write. Silence is measured from the last event
    of the agent in the log, so a restart of the control plane does not reset it.
    """
    if not settings.KANDEV_STALL_NOTICE or not held:
        return 0
    since = timezone.now() - timedelta(seconds=settings.KANDEV_STALL_NOTICE)
    return sum(
        guard_job(run.session_id, "its silence", _record_stall, run, since_output, held[run.session_id])
        for run, since_output in _load_silent_runs(since)
        if run.session_id in held
    )


OUTSIDE_QUIET = timedelta(seconds=10)
"""Silence after which an agent that worked outside a turn counts as idle again."""
OUTSIDE_TOOL_QUIET = timedelta(minutes=30)
"""The same while a tool call has no result: a command may run for long without output. Then it counts as left open."""


def end_work_outside_turns(held: Mapping[uuid.UUID, Lease]) -> int:
    """Record that agents are idle again which worked outside a turn and have been silent since; return how many."""
    if not held:
        return 0
    rows = TaskSession.objects.filter(
        _WITHOUT_TURN, state=SessionState.WAITING_FOR_INPUT, work_state=WorkState.WORKING
    ).filter(
        Q(updated_at__lt=timezone.now() - OUTSIDE_TOOL_QUIET)
        | Q(~_WITH_OPEN_TOOL, updated_at__lt=timezone.now() - OUTSIDE_QUIET)
    )
    found = rows.order_by().values_list("id", flat=True)
    return sum(guard_job(key, "its end of work", _record_rest, key, held[key]) for key in found if key in held)


_WITHOUT_TURN = ~Exists(
    Turn.objects.filter(session_id=OuterRef("pk"), state__in=OPEN_RUN_STATES)
) & ~Exists(  # a turn that is retried keeps its session working
    Prompt.objects.filter(session_id=OuterRef("pk"), state__in=OPEN_PROMPT_STATES)
)


_WITH_OPEN_TOOL = Exists(Message.objects.filter(session_id=OuterRef("pk"), role="tool", complete=False))


def _record_rest(session_id: uuid.UUID, lease: Lease) -> bool:
    with session_transaction(session_id, lease) as transaction:
        session = transaction.session
        if session.state != SessionState.WAITING_FOR_INPUT or session.work_state != WorkState.WORKING:
            return False
        if transaction.open_run is not None or session.prompts.filter(state__in=OPEN_PROMPT_STATES).exists():
            return False
        transaction.move_work("rest")
        conversation = ConversationUpdate(transaction)
        if conversation.unfinished_tools():
            conversation.finish()
            schedule_writes([conversation])
    return True


def _load_silent_runs(since: datetime) -> list[tuple[Turn, datetime]]:
    newest = SessionEvent.objects.filter(_AGENT_EVENTS, session_id=OuterRef("session_id")).order_by("-seq")
    working = Turn.objects.filter(
        state=RunState.RUNNING, has_process=True, started_at__lte=since, session__stalled_since=None
    )
    # A turn that the agent began ends by itself when it is silent.
    prompted = working.exclude(origin=TurnOrigin.AGENT)
    rows = prompted.annotate(newest_output=Subquery(newest.values("at")[:1])).filter(newest_output__lte=since)
    return [(row, row.newest_output) for row in rows]


def _record_stall(run: Turn, since_output: datetime, lease: Lease) -> bool:
    if find_open_wait(run) is not None:  # before the transaction, because it searches what the agent wrote
        return False
    with session_transaction(run.session_id, lease) as transaction:
        if transaction.open_turn is None or transaction.open_turn.id != run.id:
            return False
        transaction.set_fields(stalled_since=since_output)
        tools = ConversationUpdate(transaction).unfinished_tools()
        transaction.record_event(RunStalled(run_id=str(run.id), since=since_output.isoformat(), unfinished_tools=tools))
    return True

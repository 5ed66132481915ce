"""Periodic checks of turns, prompts, waits and their keys: for what is ignored, silent, overdue, expired or unusable.

Rows are first read without a lock, and checked again under the session's lock before anything is written.
"""

from __future__ import annotations

import logging
import shutil
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from django.conf import settings
from django.db import IntegrityError
from django.db.models import Exists, OuterRef, Q, Subquery
from django.utils import timezone

from executors_app.encryption import SecretUnreadable
from executors_app.machine.process import identity
from executors_app.models import ExecutorRunning
from executors_app.plugins import UnknownPlugin
from executors_app.wire.executions import LOCAL
from executors_app.wire.protocol import Code
from sessions_app.domain.situation_facts import DISK_CODES
from sessions_app.domain.states import (
    OPEN_PROMPT_STATES,
    OPEN_RUN_STATES,
    WAITING_PROMPT_STATES,
    PermissionState,
    RunState,
    SessionState,
    WorkState,
)
from sessions_app.domain.wait_tokens import TokenState, WaitKind
from sessions_app.events import names_of
from sessions_app.events.conversation import MessageEvent
from sessions_app.events.permissions import PermissionEvent
from sessions_app.events.prompts import PromptOverdue
from sessions_app.events.turns import RunCancelIgnored, RunEvent, RunStalled
from sessions_app.models import (
    CANCEL_IGNORED,
    QUEUED_FOR_CAPACITY,
    Intent,
    IntentKind,
    Lease,
    LeaseLost,
    Message,
    PermissionRequest,
    Prompt,
    ResumeToken,
    SessionEvent,
    SessionTransaction,
    TaskSession,
    Turn,
    session_transaction,
    waits,
)
from sessions_app.services.agent_setup import has_owner_in_team, retry_session, waiting_for_a_person
from sessions_app.services.assessment import assess_session
from sessions_app.services.attention import overdue_prompts
from sessions_app.services.intents import create_intent
from sessions_app.services.waits import permission_tokens
from sessions_app.supervisor.conversation import ConversationUpdate, schedule_writes

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
        _guarded(run.session_id, "its ignored cancel", _record_ignored_cancel, run, asked_at, held[run.session_id])
        for run, asked_at in _load_ignored(held)
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


def _record_ignored_cancel(run: Turn, asked_at: datetime, lease: Lease) -> bool:
    with session_transaction(run.session_id, lease) as transaction:
        if transaction.open_turn is None or transaction.open_turn.id != run.id:
            return False  # the turn has ended since it was read
        ignored = {"run_id": str(run.id), "since": asked_at.isoformat()}
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
        _guarded(run.session_id, "its silence", _record_stall, run, heard, held[run.session_id])
        for run, heard in _load_silent_runs(since)
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
    return sum(_guarded(key, "its end of work", _record_rest, key, held[key]) for key in found if key in held)


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
    rows = working.annotate(heard=Subquery(newest.values("at")[:1])).filter(heard__lte=since)
    return [(row, row.heard) for row in rows]


def _record_stall(run: Turn, heard: datetime, lease: Lease) -> bool:
    with session_transaction(run.session_id, lease) as transaction:
        if transaction.open_turn is None or transaction.open_turn.id != run.id:
            return False
        transaction.set_fields(stalled_since=heard)
        tools = ConversationUpdate(transaction).unfinished_tools()
        transaction.record_event(RunStalled(run_id=str(run.id), since=heard.isoformat(), unfinished_tools=tools))
    return True


OVERDUE_BATCH = 200
"""Prompts that one pass handles at most; the next pass follows within a second."""


def report_overdue_prompts() -> int:
    """Record ``session.prompt.overdue`` once for every overdue prompt; return how many."""
    found = list(overdue_prompts().order_by("id").values_list("id", "session_id")[:OVERDUE_BATCH])
    known = set(
        SessionEvent.objects.filter(once__in=[_event_key(key) for key, _ in found]).values_list("once", flat=True)
    )
    by_session = defaultdict(list)
    for key, session_id in found:
        if _event_key(key) not in known:
            by_session[session_id].append(key)
    return sum(
        _guarded(session_id, "its overdue prompts", _record_overdue, session_id, keys)
        for session_id, keys in by_session.items()
    )


def _event_key(key: int) -> str:
    return f"prompt.overdue:{key}"


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
        return QUEUED_FOR_CAPACITY if order.payload.get(QUEUED_FOR_CAPACITY) else "starting"
    return str(assess_session(session).resume_reason)


DEADLINE_BATCH = 100
"""Waits that one pass ends at most; the next pass follows within a second."""


def expire_waits() -> int:
    """Expire every wait token whose time has passed, and end the wait; return how many."""
    due = list(ResumeToken.objects.due(timezone.now()).values_list("id", "session_id")[:DEADLINE_BATCH])
    return sum(_guarded(session_id, "its wait", _expire_wait, token_id, session_id) for token_id, session_id in due)


def _expire_wait(token_id: uuid.UUID, session_id: uuid.UUID) -> bool:
    with session_transaction(session_id) as transaction:
        token = waits.expire_token(transaction, token_id)
        if token is None:
            return False
        if token.wait_kind == WaitKind.PERMISSION:
            # As an intent in this transaction: the agent is notified that there was no answer even if we crash now.
            create_intent(
                transaction.session, IntentKind.ANSWER, None, {"permission_id": token.wait_id, "option_id": None}
            )
        elif transaction.open_run is not None and transaction.open_run.id == token.run_id:
            waits.interrupt_external_wait(transaction, "wait_timeout")
    return True


def next_deadline() -> datetime | None:
    """Return when the next wait expires; now while prompts wait for an agent, which may become overdue or due."""
    if Prompt.objects.filter(state__in=WAITING_PROMPT_STATES).exists():
        return timezone.now()
    waits_with_end = ResumeToken.objects.unsettled().filter(expires_at__isnull=False).order_by("expires_at")
    return waits_with_end.values_list("expires_at", flat=True).first()


RENEWAL_BATCH = 200
"""Open requests of which one call of `renew_tokens` checks the tokens at most."""


def renew_tokens(after: str = "") -> tuple[int, str]:
    """Mint a new token for open permission requests that have none, or an undecryptable one.

    Checks ``RENEWAL_BATCH`` of them whose id is greater than ``after``. Returns how many tokens are new, and the last
    id, from which the next call continues; empty if there are no more requests.
    """
    waiting = PermissionRequest.objects.filter(state=PermissionState.PENDING, id__gt=after).order_by("id")
    requests = list(waiting.only("id", "session_id")[:RENEWAL_BATCH])
    known = permission_tokens(requests)
    lost = [(request.id, request.session_id) for request in requests if _is_unusable(known.get(request.id))]
    count = sum(_guarded(session_id, "its key", _renew_token, key, session_id) for key, session_id in lost)
    is_last = len(requests) < RENEWAL_BATCH
    return count, "" if is_last else requests[-1].id


def _is_unusable(token: ResumeToken | None) -> bool:
    """Whether a request has no token, or an active one whose secret the server's present keys cannot restore."""
    if token is None:
        return True
    return token.state(timezone.now()) is TokenState.ACTIVE and token.secret() is None


def _renew_token(permission_id: str, session_id: uuid.UUID) -> bool:
    with session_transaction(session_id) as transaction:
        request = transaction.session.permissions.filter(id=permission_id, state=PermissionState.PENDING).first()
        if request is None:
            return False
        old = permission_tokens([request]).get(request.id)
        if not _is_unusable(old):
            return False
        waits.revoke_tokens(transaction, "rotated", wait_id=request.id)
        ends = old.expires_at if old else None
        waits.mint_token(transaction, request.run, WaitKind.PERMISSION, request.id, expires_at=ends)
    return True


def _guarded(session_id: uuid.UUID, about: str, do: Callable[..., int], *args: Any) -> int:
    """Call ``do`` and return its count; log its failure and return 0, so that one bad row never stops the others."""
    try:
        return do(*args)
    except LeaseLost:
        return 0
    except Exception:
        log.exception("session %s: %s could not be looked after", session_id, about)
        return 0


MAX_SESSIONS: Final = 200


class InstalledPrograms:
    """Watches the sessions whose program was missing on this machine.

    A session is tried again once its program appears: it must have been seen missing by this process first, so a
    start that fails for another reason is not repeated.
    """

    def __init__(self) -> None:
        self._missing: set[uuid.UUID] = set()

    @property
    def is_watching(self) -> bool:
        """Whether a session waits for its program, whose installation changes nothing in the database."""
        return bool(self._missing)

    def retry_sessions(self) -> int:
        """Request a start for each session whose program has appeared since the last call; return how many."""
        missing, ready = set(), []
        for session in self._load_waiting():
            if not _is_installed(session):
                missing.add(session.id)
            elif session.id in self._missing:
                ready.append(session.id)
        self._missing = missing
        return sum(retry_session(session_id) for session_id in ready if has_owner_in_team(session_id))

    def _load_waiting(self) -> list[TaskSession]:
        here = ExecutorRunning.objects.filter(runtime=LOCAL, host_id=identity.host_id())
        rows = waiting_for_a_person(TaskSession.objects.all()).filter(
            error_code=Code.PROGRAM_MISSING, agent_execution_id__in=here.values("id")
        )
        # Without an order: to sort by id, SQLite would read all sessions by their ids instead of those with an error.
        return list(rows.select_related("agent_profile", "executor").order_by()[:MAX_SESSIONS])


def _is_installed(session: TaskSession) -> bool:
    try:
        argv, env = session.agent_profile.argv(LOCAL), session.agent_profile.env
    except (SecretUnreadable, UnknownPlugin):
        return False
    return bool(argv) and shutil.which(argv[0], path=env.get("PATH")) is not None

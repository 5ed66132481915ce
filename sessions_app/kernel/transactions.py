"""The one way to change a session: lock its row, move its states, and record every change in its log, or nothing.

``with session_transaction(session_id) as transaction`` locks the session; every change made through it is written
together with its events when the block ends. Only this module writes a status.

All that follows from a change is written in the same database transaction, in a fixed order. When the block ends:

1. **derived status**: records ``session.status_derived`` if the changes altered the status.
2. **attention**: reads the recorded events and the final states, and raises and resolves items. Each item records an
   event of its own. Mail and webhooks follow from the committed items; the worker sends them.
3. The session's row and its task's state are written.
4. **audit fields**: cause and owner go into the payloads. Last before the log, so that the events of 1 and 2 get them.
5. The events are appended and get their ``seq``; the **wake-up** of other processes is scheduled for the commit.
6. **audit log**: our own log lines name ``seq``, and are written after the commit, so they never report what was
   rolled back.
7. The steps in ``after_events``, which need ``seq`` too.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Final, cast

from django.contrib.auth.models import User
from django.db import OperationalError, connection
from django.db.models import Q
from django.db.transaction import TransactionManagementError, atomic, on_commit
from django.utils import timezone

from executors_app.machine import crash_points
from executors_app.models import ExecutorRunning
from executors_app.orm import PreparedQuery
from executors_app.wire.executions import ExecutorStatus
from sessions_app.attention.models import AttentionItem
from sessions_app.attention.raising import update_attention
from sessions_app.attention.rules.notices import cut_short_key, held_key
from sessions_app.events import Event
from sessions_app.kernel import actor_context, wakeups
from sessions_app.kernel.bulk import Row, insert_row, insert_rows, update_row, update_rows
from sessions_app.kernel.database_errors import DATABASE_BUSY, classify_error
from sessions_app.kernel.events.session import StateChanged, StatusDerived, WorkStateChanged
from sessions_app.kernel.models.event import SessionEvent
from sessions_app.kernel.models.intent import Intent, IntentKind
from sessions_app.kernel.models.session import Task, TaskSession, entering, session_key
from sessions_app.kernel.rules import states
from sessions_app.metrics import models as metric_counts
from sessions_app.permissions.models import PermissionRequest
from sessions_app.prompts.events import PROMPT_EVENTS, PromptQueued
from sessions_app.prompts.models import Prompt
from sessions_app.recovery.models import ContinuityReceipt
from sessions_app.recovery.rules.verification import ReceiptKind
from sessions_app.starts.events import AGENTCTL_EVENTS, AgentctlReady, ReceiptWritten
from sessions_app.turns.events import RUN_EVENTS, RunHeardAgain, RunStarted
from sessions_app.turns.models import Turn, attach_session, newest_run
from sessions_app.usage.models import record_turn_usage
from sessions_app.waits.models import WaitKey, end_run_of_lost_prompt, revoke_wait_keys_of_run
from sessions_app.waits.rules.wait_keys import WaitKeyState, WaitKind, most_usable_state

log = logging.getLogger(__name__)

_lock_timeout: ContextVar[float] = ContextVar("patience", default=20.0)
"""Seconds for which a request retries; a single wait for a lock always ends well within a lease."""

# "No key": a plain FOR UPDATE would make every INSERT of a row that references the session wait for us.
_LOCKED = TaskSession.objects.select_for_update(no_key=True, of=("self",))
_SESSION = PreparedQuery(lambda key: _LOCKED.filter(id=key))
"""Prepared because ingest locks a session for every batch of lines."""
_EXECUTION = PreparedQuery(lambda key: ExecutorRunning.objects.select_for_update(no_key=True).filter(id=key))
_OPEN_RUN = PreparedQuery(lambda key: Turn.objects.filter(session_id=key, state__in=states.OPEN_RUN_STATES)[:1])


class LeaseLost(Exception):
    """Another supervisor owns this execution now; nothing was written."""


_NOTICE_KEYS: Final[Mapping[str, Callable[[Any, str], str]]] = {
    states.PromptState.HELD: held_key,
    states.PromptState.INTERRUPTED: cut_short_key,
}
"""The attention item about a prompt in this state, which is settled when the prompt leaves it."""


ERROR_LIMIT: Final = 10_000
"""Characters of an error that a session or an execution keeps: every transaction reads these rows, and an agent decides
how long its errors are.
"""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write for an execution: its owner, and the generation that each take-over raises."""

    owner: str
    generation: int
    execution_id: str = field(default="", compare=False)
    """The leased execution; empty: whichever execution the session has."""


@dataclass(slots=True)
class NewEvent:
    """An event on its way into the log; ``append_events`` fills in ``seq``."""

    name: str
    payload: dict[str, Any] = field(default_factory=dict)
    at: datetime | None = None
    once: str | None = None
    seq: int = 0
    content: Event | None = None
    """The event as it was recorded; None for one that is copied from elsewhere, or whose content is still missing."""

    def fill(self, content: Event) -> None:
        """Set the content of an event whose place in the log was reserved."""
        self.content, self.payload = content, content.payload()


@dataclass
class SessionTransaction:
    """The changes to one session that are about to be written."""

    session: TaskSession
    events: list[NewEvent] = field(default_factory=list)
    changed_fields: set[str] = field(default_factory=set)
    after_events: list[Callable[[], object]] = field(default_factory=list)
    """Called once the events have their ``seq``, in the same database transaction."""
    settled_prompt_keys: list[str] = field(default_factory=list)
    """Keys of the attention items of prompts that have left a doubtful state."""
    open_attention: list[AttentionItem] | None = None
    """Cache of the session's open items; None: not read yet."""
    log_tail: str = ""
    """The end of the agent's log, without secrets, kept with the attention item when a session is given up."""
    at: datetime = field(default_factory=timezone.now)
    actor: actor_context.ActorContext = field(default_factory=actor_context.current_context)
    """Who makes the changes, and why."""
    noted_turns: dict[uuid.UUID, tuple[Turn, set[str]]] = field(default_factory=dict)
    """Turns with the names of the fields that ``note_turn`` has set and that are not written yet."""

    @cached_property
    def execution(self) -> ExecutorRunning | None:
        """The session's present execution, locked and cached on the session."""
        key = self.session.agent_execution_id
        return self.attach_execution(None if key is None else _EXECUTION.first(key))

    def attach_execution(self, execution: ExecutorRunning | None) -> ExecutorRunning | None:
        """Use an execution that the caller has read and locked as the session's present one; return it."""
        self.session.__dict__["present_execution"] = self.__dict__["execution"] = execution
        return execution

    @cached_property
    def open_run(self) -> Turn | None:
        """The run that has not ended."""
        return attach_session(self.session, _OPEN_RUN.first(self.session.id))

    @cached_property
    def newest_run(self) -> Turn | None:
        """The run from which the session's status follows: the open one, else the last that began."""
        return self.open_run or newest_run(self.session)

    @property
    def open_turn(self) -> Turn | None:
        """The open run if it is a turn, that is, if an agent process works on it; None for an external wait."""
        run = self.open_run
        if run is not None and run.has_process:
            return run
        return None

    @property
    def newest_seq(self) -> int:
        """The ``seq`` that the newest event of this transaction gets: its session is locked, so none comes between."""
        return self.session.last_seq + len(self.events)

    def record_event(self, event: Event, once: str | None = None) -> NewEvent:
        """Append an event to the session's log when the block ends.

        No two events, of any session, may have the same ``once``: the second makes the transaction fail.
        """
        recorded = NewEvent(event.name, event.payload(), self.at, once, content=event)
        self.events.append(recorded)
        return recorded

    def reserve_event(self, kind: type[Event]) -> NewEvent:
        """Reserve the next place in the log for an event whose content is not complete yet.

        The caller fills it with an event of this kind before the block ends.
        """
        reserved = NewEvent(kind.name, {}, self.at)
        self.events.append(reserved)
        return reserved

    def set_fields(self, **values: Any) -> None:
        """Set plain fields of the session, never a state."""
        for name, value in values.items():
            if getattr(self.session, name) != value:
                setattr(self.session, name, value)
                self.changed_fields.add(name)

    def move_session(self, move: str, *, error_code: str = "", error_message: str = "", reason: str = "") -> bool:
        """Move the session's state and set its error; return whether anything changed. Raises IllegalMove."""
        before, error_message = self.session.state, error_message[:ERROR_LIMIT]
        after = states.SESSION.next_state(before, move)
        if (before, self.session.error_code, self.session.error_message) == (after, error_code, error_message):
            return False
        self.set_fields(state=after, error_code=error_code, error_message=error_message)
        self.record_event(
            StateChanged(
                from_=before, to=after, reason=reason or move, error_code=error_code, error_message=error_message
            )
        )
        if move == "give_up":
            metric_counts.count_in_transaction([("kandev_reconciler_given_up_total", {}, 1)])
        return True

    def move_work(self, move: str) -> bool:
        """Move the work state; return whether it changed."""
        after = states.WORK.next_state(self.session.work_state, move)
        if after == self.session.work_state:
            return False
        self.record_event(WorkStateChanged(from_=self.session.work_state, to=after))
        self.set_fields(work_state=after)
        return True

    def move_executor(self, move: str, **values: Any) -> bool:
        """Move the execution's status and set its fields; return whether the status changed."""
        execution = self.execution
        if execution is None:
            return False
        after: ExecutorStatus = states.EXECUTOR.next_state(execution.status, move)
        moved = bool(after != execution.status)
        if after != ExecutorStatus.ERROR:
            values = {"error_code": "", "error_message": "", **values}
        if after != ExecutorStatus.STOPPED:
            values = {"status_reason": "", **values}
        if "error_message" in values:
            values["error_message"] = values["error_message"][:ERROR_LIMIT]
        changed = {name: value for name, value in values.items() if getattr(execution, name) != value}
        if not moved and not changed:
            return False
        for name, value in {**changed, "status": after}.items():
            setattr(execution, name, value)
        update_row(execution, {*changed, "status"})
        if moved or "error_message" in changed:
            kind = AGENTCTL_EVENTS[after]
            self.record_event(kind(executor_status=after, error_message=execution.error_message))
        return moved

    def record_reattach(self) -> None:
        """Record that a recovery found agentctl alive. This changes no status, so it needs no other event."""
        self.record_event(
            AgentctlReady(executor_status=ExecutorStatus.READY, error_message="", reason=ReceiptKind.REATTACHED)
        )

    def move_prompt(self, prompt: Prompt, move: str, **values: Any) -> None:
        """Move a prompt and record ``session.prompt.<state>`` if its state changed."""
        before, after = prompt.state, states.PROMPT.next_state(prompt.state, move)
        for name, value in {**values, "state": after}.items():
            setattr(prompt, name, value)
        update_row(prompt, {*values, "state"})
        if after != before:
            self.record_event(PROMPT_EVENTS[after](message_id=prompt.message_id, kind=prompt.kind, state=after))
            end_run_of_lost_prompt(self, prompt)
            if key := _NOTICE_KEYS.get(before):
                self.settled_prompt_keys.append(key(self.session.id, prompt.message_id))

    def add_prompt(self, message_id: str, text: str, **values: Any) -> Prompt:
        """Create a prompt, and record that it is queued."""
        row = Prompt.objects.create(session=self.session, message_id=message_id, text=text, **values)
        self.record_queued(row)
        return row

    def record_queued(self, row: Prompt) -> None:
        """Record that a prompt is queued."""
        self.record_event(PromptQueued(message_id=row.message_id, kind=row.kind, state=row.state))

    def accept_run(self, message_id: str, **begun: Any) -> Turn:
        """Return the run of a prompt that the agent has accepted; ``begun`` are further fields of the turn.

        The result of an external wait continues the wait's own run; any other prompt ends the open run and starts one.
        """
        run = self.open_run
        if run is not None and not run.has_process and run.message_id == message_id:
            # What the agent did during the wait is not part of the turn.
            self.note_turn(run, has_process=True, first_seq=self.newest_seq, **begun)
            self._write_noted(run)
            return run
        if run is not None:
            self.move_run("complete" if run.has_process else "cancel", reason="superseded")
        return self.start_run(message_id, **begun)

    def start_run(self, message_id: str, *, has_process: bool = True, **begun: Any) -> Turn:
        """Start a run: a turn, or an external wait, which has no agent process; ``begun`` are further fields."""
        run = Turn(
            session=self.session,
            message_id=message_id,
            started_at=self.at,
            recorded_at=timezone.now(),
            has_process=has_process,
            first_seq=self.newest_seq + 1,
            **begun,
        )
        run.save(force_insert=True)
        self.open_run = self.newest_run = run
        self.record_event(RunStarted(run_id=str(run.id), message_id=message_id, origin=run.origin))
        return run

    def note_turn(self, turn: Turn, **values: Any) -> None:
        """Set fields of a turn on which no decision depends: they are written when it moves, or the block ends."""
        changed = {name for name, value in values.items() if getattr(turn, name) != value}
        for name in changed:
            setattr(turn, name, values[name])
        if changed:
            self.noted_turns.setdefault(turn.id, (turn, set()))[1].update(changed)

    def _write_noted(self, turn: Turn, *moved: str) -> None:
        """Write the fields of a turn that were noted, and those that a move has changed, in one statement."""
        _, noted = self.noted_turns.pop(turn.id, (turn, set()))
        if names := {*moved, *noted}:
            update_row(turn, names)

    def move_run(
        self,
        move: str,
        *,
        reason: str = "",
        stop_reason: str | None = None,
        once: str | None = None,
        **details: Any,
    ) -> Turn | None:
        """Move the open run and return it; None if no run is open. A run ends exactly once.

        ``stop_reason`` is why the agent itself stopped, if it said so. ``details`` are the further fields of the event
        that records the move.
        """
        run = self.open_run
        if run is None:
            return None
        after = states.RUN.next_state(run.state, move)
        if after == run.state:
            return run
        run.waited = run.waited or after == states.RunState.WAITING
        if after not in states.OPEN_RUN_STATES:
            run.waited = run.state == states.RunState.WAITING
            run.ended_at, self.open_run = self.at, None
            self.__dict__.pop("newest_run", None)
            self.set_fields(stalled_since=None)
            revoke_wait_keys_of_run(self, run, reason or move)
            self.note_turn(run, last_seq=self.newest_seq + 1, stop_reason=stop_reason)
            details |= {"stop_reason": stop_reason, "usage": dict(run.usage or {}) or None}
            if run.has_process:
                details["counted"] = record_turn_usage(self.session, run, self.at).known() or None
        run.state, run.reason = after, reason
        self._write_noted(run, "state", "reason", "waited", "ended_at", "wait_kind")
        kind = RUN_EVENTS[after]
        self.record_event(kind(run_id=str(run.id), message_id=run.message_id, reason=reason, **details), once)
        return run

    def clear_stall(self) -> None:
        """End the notice that the agent is silent, because it has produced output."""
        if self.session.stalled_since is not None:
            self.set_fields(stalled_since=None)
            self.record_event(RunHeardAgain(run_id=str(self.open_run.id) if self.open_run else None))

    def write_receipt(
        self, kind: str, verified: str, *, launch_id: str | None = None, **values: Any
    ) -> ContinuityReceipt:
        """Write the receipt of a resume and return it; for a launch that has one already, return that."""
        if launch_id is not None:
            earlier = ContinuityReceipt.objects.filter(launch_id=launch_id).first()
            if earlier is not None:
                return earlier
        receipt = ContinuityReceipt(
            session=self.session,
            kind=kind,
            verified=verified,
            launch_id=launch_id,
            after_seq=self.newest_seq,
            created_at=timezone.now(),
            **values,
        )
        insert_row(receipt)
        self.record_event(
            ReceiptWritten(
                receipt_id=str(receipt.id),
                kind=kind,
                verified=verified,
                strategy=receipt.strategy,
                reason=receipt.reason,
            )
        )
        return receipt

    def write_rows(self) -> None:
        """Write all rows but the log, with what follows from the changes."""
        record_status_change(self)
        update_attention(self)
        for turn, _ in list(self.noted_turns.values()):
            self._write_noted(turn)
        if self.changed_fields:
            update_row(self.session, self.changed_fields)
        if "state" in self.changed_fields:
            refresh_task_state(self.session.task_id)
        add_audit_fields(self)

    def write_follow_ups(self) -> None:
        """Run what needs the events' ``seq``."""
        write_audit_log(self)
        for step in self.after_events:
            step()


def write_changes(transactions: Collection[SessionTransaction]) -> None:
    """Write all changes; the end of ``session_transaction`` and ``session_transactions``."""
    for transaction in transactions:
        with actor_context.acting_exactly_as(transaction.actor):
            transaction.write_rows()
    append_all_events({transaction.session.id: transaction.events for transaction in transactions})
    for transaction in transactions:
        with actor_context.acting_exactly_as(transaction.actor):
            transaction.write_follow_ups()


def record_status_change(transaction: SessionTransaction) -> None:
    """Record ``session.status_derived`` if the changes of this transaction alter the derived status."""
    if "launch_id" not in transaction.changed_fields and not any(map(_may_change_status, transaction.events)):
        return
    session = transaction.session
    status = derived_status(session, transaction.execution, transaction.newest_run)
    if status != session.told_status:
        transaction.record_event(StatusDerived(from_=session.told_status, status=str(status)))
        transaction.set_fields(told_status=str(status))


def _may_change_status(event: NewEvent) -> bool:
    return event.content is not None and event.content.may_change_status()


def _best_token(run: Turn) -> WaitKeyState | None:
    """Return the most usable state among the keys of what the run still waits for."""
    pending = PermissionRequest.objects.filter(run=run, state=states.PermissionState.PENDING).values("id")
    waited = Q(wait_id=run.wait_id) & ~Q(wait_kind=WaitKind.PERMISSION) | Q(wait_id__in=pending)
    now = timezone.now()
    return most_usable_state(token.state(now) for token in WaitKey.objects.filter(waited, run=run))


def derived_status(
    session: TaskSession,
    execution: ExecutorRunning | None,
    run: Turn | None,
    best_token: Callable[[Turn], WaitKeyState | None] = _best_token,
) -> states.DerivedStatus:
    """Derive the status from the newest run; one query if the run waits, else none.

    ``best_token`` returns the most usable state among the keys of what a run waits for.
    """
    if run is None:
        return states.derive_status(None)
    # An agent that does not answer may still run; only one that is stopped is certainly gone.
    gone = not session.launch_id or execution is None or execution.status == ExecutorStatus.STOPPED
    return states.derive_status(
        states.RunFacts(
            state=cast(states.RunState, run.state),  # a damaged value counts as ended
            waited=run.waited,
            process_gone=run.has_process and gone,
            ended_by_user=run.reason in states.USER_STOP_REASONS,
            token=best_token(run) if run.state == states.RunState.WAITING else WaitKeyState.ACTIVE,
        )
    )


def add_audit_fields(transaction: SessionTransaction) -> None:
    """Add cause and owner to the audited events of a supervisor; values that an event already has win."""
    known = actor_context.current_context()
    if actor_context.OWNER not in known:
        return
    for event in transaction.events:
        if _is_audited(event):
            event.payload = {
                name: known.get(name, "") for name in (actor_context.CAUSE, actor_context.OWNER)
            } | event.payload


def _is_audited(event: NewEvent) -> bool:
    return event.content is not None and event.content.is_audited


_LOGGED_FIELDS: Final = (
    "from",
    "to",
    "kind",
    "state",
    "verified",
    "reason",
    "error_code",
    "message_id",
    "attempt",
    "strategy",
)
"""Payload fields that may appear in our log: our own codes and ids, never the words of an agent or a user."""


def write_audit_log(transaction: SessionTransaction) -> None:
    """Write a log line for each audited event, after the commit."""
    known = actor_context.current_context()
    audited = [event for event in transaction.events if _is_audited(event)]
    if not audited or actor_context.OWNER not in known:
        return
    session = transaction.session
    about: dict[str, Any] = {
        **known,
        "session_id": str(session.id),
        "task_id": str(session.task_id),
        "execution_id": str(session.agent_execution_id or ""),
    }
    on_commit(lambda: _write_lines(audited, about))


def _write_lines(events: Sequence[NewEvent], about: dict[str, Any]) -> None:
    for event in events:
        fields = {name: event.payload[name] for name in _LOGGED_FIELDS if event.payload.get(name) not in (None, "")}
        words = ", ".join(f"{name} {value}" for name, value in fields.items())
        known = {**about, actor_context.CAUSE: event.payload.get(actor_context.CAUSE, "")}
        name = event.name.removeprefix("session.")
        arguments = (about["session_id"], name, words and f": {words}", known[actor_context.CAUSE])
        # Prefixed, because ``logging`` reserves some of the names (``name``, ``msg``) for itself.
        extra = {**known, **{f"act_{name}": value for name, value in fields.items()}}
        extra |= {"event": event.name, "seq": event.seq}
        level = event.content.log_level() if event.content is not None else logging.INFO
        log.log(level, "session %s: %s%s (%s)", *arguments, extra=extra)


def append_events(session_id: uuid.UUID | str, events: Sequence[NewEvent]) -> int:
    """Append events to a session's log in the caller's transaction; return the last ``seq``.

    Other processes are woken after the commit.
    """
    append_all_events({session_key(session_id): events})
    if events:
        return events[-1].seq
    return 0


def append_all_events(events_by_session: Mapping[uuid.UUID, Sequence[NewEvent]]) -> None:
    """Append events to the logs of several sessions, whose rows the caller has locked. All writes go through here."""
    if not connection.in_atomic_block:
        raise TransactionManagementError("append_all_events() must run in a transaction")
    by_count = defaultdict(list)  # one statement numbers all sessions with equally many events
    for key, events in events_by_session.items():
        if events:
            by_count[len(events)].append(key)
    rows: list[Row] = []
    for count, sessions in by_count.items():
        for key, first in _reserve_numbers(sessions, count).items():
            rows += _numbered(key, first, events_by_session[key])
    _write_events(rows)


def write_numbered_events(session_id: uuid.UUID | str, first: int, events: Iterable[NewEvent]) -> int:
    """Write imported events under their original numbers, from ``first`` on; return the last ``seq``."""
    rows = _numbered(session_key(session_id), first, events)
    _write_events(rows)
    return first + len(rows) - 1


def _reserve_numbers(sessions: Sequence[uuid.UUID], count: int) -> dict[uuid.UUID, int]:
    """Reserve ``count`` numbers in the log of each session and return the first of each.

    The caller has locked the sessions' rows, and they stay locked until the commit. The order of commits is therefore
    the order of ``seq``: a reader who has seen a number will never find a smaller one appear later.
    """
    places = ", ".join(["%s"] * len(sessions))
    sql = f"UPDATE task_sessions SET last_seq = last_seq + %s WHERE id IN ({places}) RETURNING id, last_seq"  # noqa: S608
    keys = [TaskSession._meta.pk.get_db_prep_value(key, connection) for key in sessions]
    with connection.cursor() as cursor:
        cursor.execute(sql, [count, *keys])
        firsts = {uuid.UUID(str(key)): int(last) - count + 1 for key, last in cursor.fetchall()}
    for key in sessions:
        if key not in firsts:
            raise TaskSession.DoesNotExist(f"no session {key}")
    return firsts


def _numbered(session_id: uuid.UUID, first: int, events: Iterable[NewEvent]) -> list[Row]:
    now, rows = timezone.now(), list[Row]()
    for seq, event in enumerate(events, start=first):
        event.seq = seq
        rows.append((session_id, seq, event.name, event.payload, event.at or now, event.once))
    return rows


def _write_events(rows: Sequence[Row]) -> None:
    if rows:
        insert_rows(SessionEvent, ("session_id", "seq", "name", "payload", "at", "once"), rows)
        wakeups.notify_on_commit()


def refresh_task_state(task_id: uuid.UUID) -> None:
    """Set a task's state from the states of its sessions, unless a user has set it to DONE or CANCELLED."""
    before = Task.objects.select_for_update(no_key=True).values_list("state", flat=True).get(id=task_id)
    # The task's row is locked by now: if two of its sessions change at once, the second to get here sees both
    # changes.
    sessions = TaskSession.objects.filter(task_id=task_id).order_by().values_list("state", flat=True)
    after = states.task_state(before, list(sessions))
    if after != before:
        values = entering(after)
        update_rows(Task, tuple(values), [(*values.values(), task_id)])


@contextmanager
def session_transaction(
    session_id: uuid.UUID | str, lease: Lease | None = None, *, related: Sequence[str] = ()
) -> Iterator[SessionTransaction]:
    """Change one session in one database transaction; with a ``lease``, only while that lease holds (else LeaseLost).

    ``related`` names relations that are read in the same query, such as ``agent_profile``.

    If other writers keep the row locked, a request retries for up to ``lock_timeout()`` seconds. A lease holder does
    not wait, because its lease might expire meanwhile.
    """
    with lock_session(session_id, patience=0 if lease else lock_timeout(), related=related) as session:
        transaction = SessionTransaction(session)
        if lease is not None:
            _require_lease(transaction.execution, lease)
        yield transaction
        write_changes([transaction])


@contextmanager
def session_transactions(
    leases: Mapping[uuid.UUID, Lease], *, only_for_output: bool = False
) -> Iterator[dict[uuid.UUID, SessionTransaction]]:
    """Change many sessions in one database transaction, each under its lease: all of them or none.

    Sessions whose lease is no longer ours are left out. With ``only_for_output``, only the columns that an agent's
    output needs are read; any other is read when it is used, with a query of its own.
    """
    with atomic():
        transactions = _locked_transactions(leases, only_for_output)
        yield transactions
        write_changes(transactions.values())


_SESSION_FOR_OUTPUT: Final = ("agent_execution_id", "stalled_since", "work_state", "state", "launch_id", "last_seq")
_EXECUTION_FOR_OUTPUT: Final = (
    "session_id",
    "owner",
    "generation",
    "journal_epoch",
    "journal_seq",
    "last_seen_at",
    "output_bytes",
    "turn_output_bytes",
    "output_allowed",
    "turn_output_allowed",
    "output_left_out",
    "output_limit",
    "snapshot_announced",
)


def _locked_transactions(leases: Mapping[uuid.UUID, Lease], for_output: bool) -> dict[uuid.UUID, SessionTransaction]:
    # All code locks sessions in the order of their ids, and executions after them, so that no two deadlock.
    rows = TaskSession.objects.select_for_update(no_key=True).filter(id__in=leases).order_by("id")
    rows = rows.only(*_SESSION_FOR_OUTPUT) if for_output else rows
    sessions = {session.agent_execution_id: session for session in rows if session.agent_execution_id}
    executions = ExecutorRunning.objects.select_for_update(no_key=True).filter(id__in=sessions).order_by("session_id")
    executions = executions.only(*_EXECUTION_FOR_OUTPUT) if for_output else executions
    locked: dict[uuid.UUID, SessionTransaction] = {}
    for execution in executions:
        session = sessions[execution.id]
        with suppress(LeaseLost):
            _require_lease(execution, leases[session.id])
            transaction = locked[session.id] = SessionTransaction(session)
            transaction.attach_execution(execution)
    return locked


def _require_lease(execution: ExecutorRunning | None, lease: Lease) -> None:
    # The execution's row is locked, so no supervisor can take the lease over between this check and our commit.
    held = None if execution is None else (execution.owner, execution.generation)
    if execution is None or held != (lease.owner, lease.generation):
        raise LeaseLost(LeaseLost.__doc__)
    if lease.execution_id not in ("", str(execution.id)):
        raise LeaseLost("The session has moved to another execution.")


def create_intent(
    session: TaskSession,
    kind: str,
    by: User | None,
    payload: dict[str, Any] | None = None,
    *,
    agent_died_at: datetime | None = None,
) -> Intent:
    """Write an intent in the caller's transaction, and wake the supervisors after the commit.

    ``agent_died_at``: of a start, when the agent died that it replaces.
    """
    intent = Intent.objects.create(
        session=session, kind=kind, by=by, payload=payload or {}, agent_died_at=agent_died_at
    )
    crash_points.reached("request.order_written", session.id)
    on_commit(lambda: crash_points.reached("request.order_committed", session.id))
    wakeups.notify_on_commit()
    return intent


def open_start_intent(session: TaskSession) -> Intent | None:
    """Return the session's open start intent; a constraint allows at most one."""
    return Intent.objects.filter(session=session, kind=IntentKind.START, done_at=None).first()


def wait_briefly_for_locks() -> None:
    """Let this thread wait for a lock only once: it has leases to renew."""
    _lock_timeout.set(0.0)


def lock_timeout() -> float:
    """Return the seconds for which this thread may retry to lock a session."""
    return _lock_timeout.get()


@contextmanager
def lock_session(session_id: uuid.UUID | str, patience: float, related: Sequence[str] = ()) -> Iterator[TaskSession]:
    """Lock the session's row in a transaction that ends with the block, and yield it.

    ``related`` names relations that are read with it, but not locked. Nothing is written before the row is locked, so
    that a retry is safe. Raises OperationalError after ``patience`` seconds, or at once inside a transaction of the
    caller, which a retry could not begin again.
    """
    deadline = time.monotonic() + patience
    with ExitStack() as outer:
        yield _begin_locked(outer, session_id, deadline, related)


def _begin_locked(
    outer: ExitStack, session_id: uuid.UUID | str, deadline: float, related: Sequence[str]
) -> TaskSession:
    # Only a lock is taken in here, so an attempt that fails has written nothing and can be repeated.
    while True:
        try:
            with ExitStack() as attempt:
                attempt.enter_context(atomic())
                session = _read_locked(session_id, related)
                # The transaction stays open in the caller's stack; on an error before this line, ``attempt`` rolls it
                # back.
                outer.enter_context(attempt.pop_all())
                return session
        except OperationalError as error:
            if connection.in_atomic_block or not is_busy(error) or time.monotonic() >= deadline:
                raise


def _read_locked(session_id: uuid.UUID | str, related: Sequence[str]) -> TaskSession:
    key = session_key(session_id)
    if related:
        found = _LOCKED.select_related(*related).filter(id=key).first()
    else:
        found = _SESSION.first(key)
    if found is None:
        raise TaskSession.DoesNotExist(f"no session {session_id}")
    return found


def is_busy(error: OperationalError) -> bool:
    """Return whether the error only means that others held the lock for too long; nothing was written."""
    return classify_error(error) is DATABASE_BUSY

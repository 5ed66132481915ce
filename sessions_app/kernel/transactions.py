"""The one way to change a session: lock its row, move its states, and record every change in its log, or nothing.

``with session_transaction(session_id) as transaction`` locks the session; every change made through it is written
together with its events when the block ends. Only this module writes a status.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Final

from django.contrib.auth.models import User
from django.db.transaction import atomic, on_commit
from django.utils import timezone

from executors_app.machine import crash_points
from executors_app.models import ExecutorRunning
from executors_app.orm import PreparedQuery
from executors_app.wire.executions import ExecutorStatus
from sessions_app.attention.models import AttentionItem
from sessions_app.attention.rules.notices import cut_short_key, held_key
from sessions_app.events import Event
from sessions_app.kernel import actor_context, wakeups
from sessions_app.kernel.bulk import insert_row, update_row, update_rows
from sessions_app.kernel.events.session import StateChanged, WorkStateChanged
from sessions_app.kernel.locking import lock_session, lock_timeout
from sessions_app.kernel.models.event import NewEvent, append_all_events
from sessions_app.kernel.models.intent import Intent, IntentKind
from sessions_app.kernel.models.session import Task, TaskSession
from sessions_app.kernel.rules import states
from sessions_app.metrics import models as metric_counts
from sessions_app.prompts.events import PROMPT_EVENTS, PromptQueued
from sessions_app.prompts.models import Prompt
from sessions_app.recovery.models import ContinuityReceipt
from sessions_app.recovery.rules.verification import ReceiptKind
from sessions_app.starts.events import AGENTCTL_EVENTS, AgentctlReady, ReceiptWritten
from sessions_app.turns.events import RUN_EVENTS, RunHeardAgain, RunStarted
from sessions_app.turns.models import Turn, attach_session, newest_run

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
            _side_effects.prompt_moved(self, prompt)
            if key := _NOTICE_KEYS.get(before):
                self.settled_prompt_keys.append(key(self.session.id, prompt.message_id))

    def queue_prompt(self, message_id: str, text: str, **values: Any) -> Prompt:
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
            _side_effects.run_ended(self, run, reason or move)
            self.note_turn(run, last_seq=self.newest_seq + 1, stop_reason=stop_reason)
            details |= {"stop_reason": stop_reason, "usage": dict(run.usage or {}) or None}
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
        """Run the hooks on what has changed and write all rows but the log."""
        _side_effects.before_write(self)
        for turn, _ in list(self.noted_turns.values()):
            self._write_noted(turn)
        if self.changed_fields:
            update_row(self.session, self.changed_fields)
        if "state" in self.changed_fields:
            refresh_task_state(self.session.task_id)
        _side_effects.before_append(self)

    def write_follow_ups(self) -> None:
        """Run what needs the events' ``seq``."""
        _side_effects.after_append(self)
        for step in self.after_events:
            step()


Hook = Callable[[SessionTransaction], object]


@dataclass(frozen=True, slots=True)
class SideEffects:
    """Hooks of every session transaction, all called inside it.

    ``sessions_app.kernel.side_effects`` holds the one instance and explains its order.
    """

    prompt_moved: Callable[[SessionTransaction, Prompt], object]
    """After a prompt has changed its state."""
    run_ended: Callable[[SessionTransaction, Turn, str], object]
    """When a run ends, before its row and its event are written; with the reason."""
    before_write: Hook
    """When the block ends, before the session's row is written; may record events and set fields."""
    before_append: Hook
    """After all rows are written; may still change the events' payloads."""
    after_append: Hook
    """After the events have their ``seq``."""


_side_effects: SideEffects


def register_side_effects(side_effects: SideEffects) -> None:
    """Set the hooks of all session transactions; called once, when the models are loaded."""
    global _side_effects  # noqa: PLW0603
    _side_effects = side_effects


def write_changes(transactions: Collection[SessionTransaction]) -> None:
    """Write all changes; the end of ``session_transaction`` and ``session_transactions``."""
    for transaction in transactions:
        with actor_context.acting_exactly_as(transaction.actor):
            transaction.write_rows()
    append_all_events({transaction.session.id: transaction.events for transaction in transactions})
    for transaction in transactions:
        with actor_context.acting_exactly_as(transaction.actor):
            transaction.write_follow_ups()


def refresh_task_state(task_id: uuid.UUID) -> None:
    """Set a task's state from the states of its sessions, unless a user has set it to DONE or CANCELLED."""
    before = Task.objects.select_for_update(no_key=True).values_list("state", flat=True).get(id=task_id)
    # The task's row is locked by now: if two of its sessions change at once, the second to get here sees both
    # changes.
    sessions = TaskSession.objects.filter(task_id=task_id).order_by().values_list("state", flat=True)
    after = states.task_state(before, list(sessions))
    if after != before:
        update_rows(Task, ("state", "updated_at"), [(after, timezone.now(), task_id)])


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


def create_intent(session: TaskSession, kind: str, by: User | None, payload: dict[str, Any] | None = None) -> Intent:
    """Write an intent in the caller's transaction, and wake the supervisors after the commit."""
    intent = Intent.objects.create(session=session, kind=kind, by=by, payload=payload or {})
    crash_points.reached("request.order_written", session.id)
    on_commit(lambda: crash_points.reached("request.order_committed", session.id))
    wakeups.notify_on_commit()
    return intent


def open_start_intent(session: TaskSession) -> Intent | None:
    """Return the session's open start intent; a constraint allows at most one."""
    return Intent.objects.filter(session=session, kind=IntentKind.START, done_at=None).first()

"""Carry out one decision of a sweep: take over, drain, write, create intents. Every step may be repeated."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from executors_app.machine import crash_points
from executors_app.models import ExecutorRunning
from executors_app.plugins import runtime
from executors_app.wire.errors import ExecutorError
from executors_app.wire.executions import Observation, Observed
from sessions_app.attention.rules import notices
from sessions_app.kernel.actor_context import ActorContext, current_context
from sessions_app.kernel.database_threads import BatchExecutor
from sessions_app.kernel.rules.states import ENDED_STATES, EXECUTOR, SESSION, DesiredState
from sessions_app.models import (
    IDLE_REASON,
    ContinuityReceipt,
    IntentKind,
    Lease,
    LeaseLost,
    SessionTransaction,
    raise_item,
    session_transaction,
    session_transactions,
)
from sessions_app.recovery.rules.recovery import is_start_decision
from sessions_app.recovery.rules.recovery_facts import UNREACHABLE, WORKTREE_MISSING, Decision
from sessions_app.recovery.rules.resumability import Mode, Reason
from sessions_app.recovery.rules.verification import ReceiptKind
from sessions_app.recovery.sweep.candidates import Candidate
from sessions_app.sessions.rules.situation_facts import AGENT_DIED
from sessions_app.sessions.services import intents
from sessions_app.starts.events import RestartOrdered, StartWaits
from sessions_app.starts.outcomes import explain_agent_deaths
from sessions_app.stream.ingest.batches import ingest_batch
from sessions_app.supervisor import execution_registry, leases
from sessions_app.supervisor.execution_registry import ExecutionRegistry
from sessions_app.supervisor.executions import address_columns
from sessions_app.supervisor.place_threads import in_place_thread
from sessions_app.turns.interruptions import (
    AGENTCTL_GONE,
    PIPE_LOST_REASONS,
    hold_unsent_prompts,
    interrupt_turn,
    record_agent_death,
    reset_attempts_if_stable,
    withdraw_continuation,
)

log = logging.getLogger(__name__)
DRAIN_BATCH = 500
"""Lines of a dead agentctl's journal that one transaction writes."""
JOURNAL_TIMEOUT = 2.0
"""Seconds that the log may take to reach the journal position that agentctl reported."""

NO_RESTART_CODES = frozenset({Reason.NOT_RESUMABLE, Reason.CONTEXT_MISMATCH, Reason.WORKTREE_MISSING})
"""Error codes of sessions whose agent only a user may start again."""
HANDS_OFF_RULES = frozenset({"foreign_lease", "start_under_way", "asleep"})
"""Rules under which the sweep does not attach to a living execution."""


@dataclass
class ActionOutcome:
    """The result of acting on one row."""

    receipt_kind: str = ""
    error: str = ""
    duration_ms: int = 0
    skipped: bool = False
    """Another supervisor holds the session."""
    start: uuid.UUID | None = None
    """The start intent that was created."""


@dataclass(frozen=True, slots=True)
class PendingReattach:
    """A reattach that is still to be written into the session's rows."""

    row: Candidate
    seen: Observation
    decision: Decision
    lease: Lease
    known: ActorContext = field(default_factory=current_context)
    """Who acts, and why: kept here because one batch writes for many sessions."""

    @property
    def session_id(self) -> uuid.UUID:
        """The session whose rows are written."""
        return self.row.stored.session_id


ReattachExecutor = BatchExecutor[PendingReattach, ActionOutcome]


async def act_on_decision(
    registry: ExecutionRegistry, reattach: ReattachExecutor, row: Candidate, seen: Observation, decision: Decision
) -> ActionOutcome:
    """Carry out the decision on one row; a lost lease gives an outcome with ``skipped``."""
    place = replace(row.place, agentctl_url=seen.url or row.place.agentctl_url, state=seen.state or row.place.state)
    if decision.end_leftovers:
        await runtime(place.runtime).end_leftovers(place)
        crash_points.reached("sweep.leftovers_ended", row.stored.session_id)
    if decision.rule == "owner_left":
        await registry.database(_raise_owner_left, row.stored.session_id)
    attached = registry.stream_of(row.stored.session_id) is not None
    takes_over = seen.observed is Observed.ALIVE and not attached and decision.rule not in HANDS_OFF_RULES
    if decision.is_noop and not takes_over:
        return ActionOutcome(skipped=decision.rule == "foreign_lease")
    try:
        if takes_over:
            return await _take_over(registry, reattach, row, seen, decision)
        return await _write_unattached(registry, row, seen, decision)
    except LeaseLost:
        return ActionOutcome(skipped=True)


def _raise_owner_left(session_id: uuid.UUID) -> None:
    """Tell staff, once, that the session's owner has left the team; it is not started automatically (rule 35)."""
    with session_transaction(session_id, related=("owner",)) as transaction:
        owner = transaction.session.owner
        raise_item(transaction, notices.owner_left_notice(str(session_id), owner.get_username() if owner else ""))


async def _take_over(
    registry: ExecutionRegistry, reattach: ReattachExecutor, row: Candidate, seen: Observation, decision: Decision
) -> ActionOutcome:
    """Attach to a living execution, read its journal into the log, then write the decision."""
    if _has_moved(seen, row):  # before attaching, which reads the address from the row
        await registry.database(_save_address, row.stored.id, seen)
    try:
        stream = await registry.open_stream(row.stored.session_id, seen.report)
    except ExecutorError as error:
        return ActionOutcome(error=error.message)
    if stream is None:
        return ActionOutcome(skipped=True)
    crash_points.reached("sweep.taken_over", row.stored.session_id)
    if decision.agent_action == "reattach" and decision.session_move is None:
        return await reattach(PendingReattach(row, seen, decision, stream.lease))
    return await registry.database(write_decision, row, seen, decision, stream.lease)


def _has_moved(seen: Observation, row: Candidate) -> bool:
    """Whether the observed address or runtime state differs from the row."""
    moved = bool(seen.url) and seen.url != row.stored.agentctl_url
    return moved or (seen.state is not None and dict(seen.state) != row.stored.state)


def _save_address(execution_id: uuid.UUID, seen: Observation) -> None:
    """Write the address of an execution that an unfinished launch left without one, or that has moved."""
    values: dict[str, Any] = {**address_columns(seen.url), "pid": seen.pid}
    if seen.state is not None:
        values["state"] = dict(seen.state)
    ExecutorRunning.objects.filter(id=execution_id).update(**values)


async def _write_unattached(
    registry: ExecutionRegistry, row: Candidate, seen: Observation, decision: Decision
) -> ActionOutcome:
    held = registry.stream_of(row.stored.session_id)
    lease = held.lease if held else await registry.database(leases.acquire_lease, row.stored.id, registry.boot_id)
    if lease is None:
        return ActionOutcome(skipped=True)
    if held and seen.report and _agent_is_gone(seen):
        # The report may be ahead of the stream. The agent's last lines show whether it had its prompt: without them
        # the prompt would be held, and the work not continued.
        journal = seen.report["journal"]
        await held.wait_until_logged(journal["epoch"], journal["last_seq"], JOURNAL_TIMEOUT)
    if seen.observed is Observed.DEAD:
        # Before the decision is written, for the same reason; a crash in between only drains again behind the cursor.
        await _drain_dead(registry, row, lease)
        crash_points.reached("sweep.drained", row.stored.session_id)
    gives_up = decision.session_move == "give_up"
    evidence = await execution_registry.read_log_tail(registry, row.stored.session_id) if gives_up else ""
    outcome = await registry.database(write_decision, row, seen, decision, lease, evidence)
    crash_points.reached("sweep.row_written", row.stored.session_id)
    if held is None and decision.agent_action == "none":
        await registry.database(leases.release_leases, registry.boot_id, row.stored.id)
    return outcome


async def _drain_dead(registry: ExecutionRegistry, row: Candidate, lease: Lease) -> None:
    """Ingest what a dead agentctl left on disk: the rest of its journal, and the agent's resume token."""
    place = runtime(row.place.runtime)
    epoch, seq = row.stored.journal_epoch, row.stored.journal_seq
    try:
        token = await in_place_thread(row.place, place.resume_token, row.place)
        lines = list(await in_place_thread(row.place, place.unread_journal, row.place, seq, epoch))
    except (OSError, ValueError, ExecutorError) as error:
        log.warning("session %s: what its agentctl left cannot be read: %s", row.stored.session_id, error)
        return
    kept = {"resume_token": token} if token else None
    for start in range(0, max(len(lines), 1 if kept else 0), DRAIN_BATCH):
        batch = lines[start : start + DRAIN_BATCH]
        await registry.writer(ingest_batch, row.stored.session_id, lease, batch, kept, alive=False)


def write_reattachments(batch: Sequence[PendingReattach]) -> list[ActionOutcome | Exception]:
    """Write many reattachments in one transaction; the result of a session whose lease we lost is LeaseLost.

    None of them may move its session: that also locks the task's row, whose holder must not wait for another session.
    """
    with session_transactions({pending.session_id: pending.lease for pending in batch}) as transactions:
        told = _load_told_takeovers(transactions.values())
        return [_write_reattachment(transactions.get(pending.session_id), pending, told) for pending in batch]


def _write_reattachment(
    transaction: SessionTransaction | None, pending: PendingReattach, told: Collection[uuid.UUID]
) -> ActionOutcome | Exception:
    if transaction is None:
        return LeaseLost(LeaseLost.__doc__)
    transaction.actor = pending.known
    return _write_changes(transaction, pending.row, pending.seen, pending.decision, told)


def write_decision(
    row: Candidate, seen: Observation, decision: Decision, lease: Lease, evidence: str = ""
) -> ActionOutcome:
    """Write one decision under the lease: states, receipt and intents, in one transaction. Raises LeaseLost."""
    with session_transaction(row.stored.session_id, lease) as transaction:
        transaction.log_tail = evidence
        told = _load_told_takeovers([transaction]) if decision.agent_action == "reattach" else ()
        return _write_changes(transaction, row, seen, decision, told)


def _write_changes(
    transaction: SessionTransaction, row: Candidate, seen: Observation, decision: Decision, told: Collection[uuid.UUID]
) -> ActionOutcome:
    outcome = ActionOutcome()
    if transaction.session.launch_id != row.stored.session__launch_id:
        return outcome  # another agent has started or ended since: the observation is outdated
    if seen.observed is Observed.DEAD or _agent_is_gone(seen):
        # Whatever was decided: the drained journal may have opened a turn that the decision did not know of.
        reset_attempts_if_stable(transaction)
        interrupt_turn(transaction, _why_interrupted(seen))
        record_agent_death(transaction)
    _move_executor(transaction, seen, decision)
    if decision.agent_action == "reattach":
        outcome.receipt_kind = _record_reattach(transaction, row, seen, told)
        if outcome.receipt_kind:
            transaction.record_reattach()
    _move_session(transaction, decision)
    outcome.start = _create_intents(transaction, decision)
    _place_in_start_queue(transaction, decision)
    crash_points.reached("sweep.row_unwritten", row.stored.session_id)
    return outcome


def _load_told_takeovers(transactions: Collection[SessionTransaction]) -> set[uuid.UUID]:
    """Return the sessions that already have a receipt for their current generation."""
    generations = {
        transaction.session.id: transaction.execution.generation
        for transaction in transactions
        if transaction.execution
    }
    receipts = ContinuityReceipt.objects.filter(
        session_id__in=generations, kind=ReceiptKind.REATTACHED, evidence__generation__in=set(generations.values())
    )
    said = receipts.order_by().values_list("session_id", "evidence__generation")
    return {session_id for session_id, generation in said if generations[session_id] == generation}


def _why_interrupted(seen: Observation) -> str:
    if seen.observed is not Observed.DEAD:
        return "agent_gone"
    if seen.reason in PIPE_LOST_REASONS:
        return seen.reason
    return AGENTCTL_GONE


def _agent_is_gone(seen: Observation) -> bool:
    return seen.report is not None and seen.report["agent"]["state"] in ("none", "exited", "failed")


def _move_executor(transaction: SessionTransaction, seen: Observation, decision: Decision) -> None:
    execution, move = transaction.execution, decision.executor_move
    said_by_order = decision.agent_action in ("resume", "start_workspace", "stop") and move != "ready"
    if execution is None or move is None or said_by_order or not EXECUTOR.allows(execution.status, move):
        return  # the start or stop moves the execution itself, once it has happened
    values: dict[str, Any] = {"last_seen_at": seen.seen_at} if seen.observed is Observed.ALIVE and seen.seen_at else {}
    if move == "fail":
        values |= {"error_code": decision.session_error_code, "error_message": decision.error_message}
    if move == "stop":
        values |= {"status_reason": decision.reason[:64], "pid": None}
    transaction.move_executor(move, **values)


def _record_reattach(
    transaction: SessionTransaction, row: Candidate, seen: Observation, told: Collection[uuid.UUID]
) -> str:
    """Write the receipt of a reattach and return its kind; empty if the lease was released and no line was missed."""
    report = seen.report or {}
    launch_id = str(report.get("agent", {}).get("launch_id") or "")
    if launch_id and transaction.session.launch_id != launch_id:
        transaction.set_fields(launch_id=launch_id)
    # Taking a lease again after an orderly release is not an event (rule 18).
    behind = report.get("journal", {}).get("last_seq", 0) - row.stored.journal_seq
    if not row.stored.owner and behind <= 0:
        return ""
    if transaction.session.id in told:
        return ""  # a concurrent sweep of ours has written it
    transaction.write_receipt(
        ReceiptKind.REATTACHED,
        "same_process",
        reason="taken_over",
        evidence={
            "agent_pid": report.get("agent", {}).get("pid"),
            "agent_started_at": report.get("agent", {}).get("started_at"),
            "journal_lines_drained": max(behind, 0),
            "generation": transaction.execution.generation if transaction.execution else None,
        },
    )
    return ReceiptKind.REATTACHED


def _move_session(transaction: SessionTransaction, decision: Decision) -> None:
    move = decision.session_move
    if move is None or move == "start" or not SESSION.allows(transaction.session.state, move):
        return  # a start moves the session itself, when it is claimed
    if move == "ready" and transaction.open_turn is not None:
        move = "turn_started"
    if move == "turn_started" and transaction.open_turn is None:
        move = "ready"
    code, message = decision.session_error_code, decision.error_message
    if move == "give_up" and (cause := explain_agent_deaths(transaction)):
        code, message = AGENT_DIED, cause
    if move == "give_up" or (move == "fail" and decision.session_error_code != UNREACHABLE):
        hold_unsent_prompts(transaction)
    if move == "fail" and code in NO_RESTART_CODES:
        withdraw_continuation(transaction)
    transaction.move_session(move, error_code=code, error_message=message, reason=decision.reason or decision.rule)
    if decision.session_error_code == WORKTREE_MISSING:
        transaction.set_fields(next_restart_at=None)


def _create_intents(transaction: SessionTransaction, decision: Decision) -> uuid.UUID | None:
    """Create the intent that the decision needs, the same as a user's click would; return that of a start."""
    if is_start_decision(decision):
        if _is_still_wanted(transaction):
            return _create_start_intent(transaction, decision)
        return None
    if decision.agent_action == "stop" and not _is_being_stopped(transaction):
        asleep = {"reason": IDLE_REASON} if decision.rule == "asleep_but_alive" else {}
        intents.create_intent(transaction.session, IntentKind.STOP, None, asleep)
    return None


def _create_start_intent(transaction: SessionTransaction, decision: Decision) -> uuid.UUID | None:
    """Create a start intent that no user requested; its event records why, and on whose behalf."""
    if intents.open_start_intent(transaction.session) is not None:
        return None  # another sweep or a user has already requested it
    auto = decision.agent_action == "resume" or not transaction.session.has_agent
    mode = Mode.AUTO if auto else Mode.WORKSPACE_ONLY
    intent = intents.create_intent(transaction.session, IntentKind.START, None, {"mode": mode})
    transaction.record_event(
        RestartOrdered(
            cause=decision.rule,
            launch_id=str(intent.id),
            mode=mode,
            attempt=transaction.session.start_attempts + 1,
            owner_id=transaction.session.owner_id,
        )
    )
    return intent.id


def _place_in_start_queue(transaction: SessionTransaction, decision: Decision) -> None:
    """Give the session a place in the start queue, with one event; or take it away if it is not to be started."""
    if decision.start_rank is None and decision.rule != "waits_for_turn":
        transaction.set_fields(start_rank=None)
    elif decision.start_rank is not None and transaction.session.start_rank is None:
        transaction.set_fields(start_rank=decision.start_rank)
        transaction.record_event(StartWaits(reason=decision.wait_reason, before=decision.before))


def _is_still_wanted(transaction: SessionTransaction) -> bool:
    """Whether the session should still run, read under the lock: a user may have stopped it since the decision."""
    over = transaction.session.state in ENDED_STATES or transaction.session.task.is_over
    return transaction.session.desired_state == DesiredState.RUNNING and not over


def _is_being_stopped(transaction: SessionTransaction) -> bool:
    stops = transaction.session.intents.filter(kind__in=(IntentKind.STOP, IntentKind.CLOSE), done_at=None)
    return bool(stops.exists())

"""The sweep: read, observe, decide, act. Boot, loop and command all call the same ``run_sweep``."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from executors_app.machine import crash_points
from executors_app.models import ExecutorRunning
from executors_app.plugins import UnknownPlugin, runtime
from executors_app.runtimes import read_left_state
from executors_app.wire.errors import AgentctlForeign, AgentctlUnreachable, ExecutorError, RuntimeUnavailable
from executors_app.wire.executions import ExecutionFacts, ExecutorStatus, Observation, Observed
from executors_app.wire.exhaustion import raise_if_exhausted
from sessions_app.attention.rules import notices
from sessions_app.kernel.actor_context import CAUSE, ActorContext, acting_as, current_context
from sessions_app.kernel.bulk import insert_rows
from sessions_app.kernel.database_threads import MAX_BATCH, BatchExecutor
from sessions_app.kernel.rules.states import ENDED_STATES, EXECUTOR, SESSION, DesiredState
from sessions_app.kernel.transactions import create_intent, open_start_intent
from sessions_app.metrics.counters import METRICS_BUFFER
from sessions_app.models import (
    IDLE_REASON,
    ContinuityReceipt,
    Intent,
    IntentKind,
    Lease,
    LeaseLost,
    RecoverySweep,
    SessionTransaction,
    SweepOutcome,
    TaskSession,
    raise_item,
    session_transaction,
    session_transactions,
)
from sessions_app.recovery.rules.recovery import (
    LEFT_UNREAD,
    OVERTAKEN,
    SKIPPED,
    UNDER_WAY,
    Decision,
    SweepFacts,
    decide,
    is_start_decision,
    planned_row_result,
    postpone_start,
    row_result,
)
from sessions_app.recovery.rules.resumability import SEEN_RECENTLY, UNREACHABLE, WORKTREE_MISSING, Mode, Reason
from sessions_app.recovery.rules.verification import ReceiptKind
from sessions_app.recovery.services.assessment import DAMAGED_ROW
from sessions_app.recovery.sweep import candidates
from sessions_app.recovery.sweep.candidates import Candidate, CorruptRow
from sessions_app.sessions.rules.situation_facts import AGENT_DIED
from sessions_app.starts import admission
from sessions_app.starts.events import RestartOrdered, StartWaits
from sessions_app.starts.rules.restart_rules import Applicant
from sessions_app.stream.ingest.batches import ingest_batch
from sessions_app.supervisor import execution_registry, leases
from sessions_app.supervisor.database_outage import is_database_outage
from sessions_app.supervisor.execution_registry import ExecutionRegistry
from sessions_app.supervisor.place_threads import in_place_thread, place_of
from sessions_app.turns.interruptions import (
    AGENTCTL_GONE,
    PIPE_LOST_REASONS,
    explain_agent_deaths,
    hold_unsent_prompts,
    interrupt_turn,
    record_agent_death,
    reset_attempts_if_stable,
    withdraw_continuation,
)

log = logging.getLogger(__name__)
Trigger = Literal["boot", "reconcile", "command"]
ProgressCallback = Callable[[int, int], None]
"""Called with (rows done, rows in all)."""


def ignore_progress(done: int, total: int) -> None:
    """Report no progress."""


NEVER = datetime.min.replace(tzinfo=UTC)
MAX_CONCURRENT_ACTIONS = 16
MAX_CONCURRENT_ATTACHES = 3 * MAX_BATCH
"""A reattach needs a lease, a connection and a few rows: this many keep a full batch busy at each of the three."""


@dataclass(frozen=True, slots=True)
class SweepScope:
    """Which sessions a sweep covers, and how it observes them; empty or zero fields stand for all and the defaults."""

    trigger: Trigger
    sessions: Collection[uuid.UUID] = ()
    runtime: str = ""
    concurrency: int = 0
    timeout: float = 0.0
    dry_run: bool = False
    admitted: bool = False
    """Whether these sessions come from the start queue because it is their turn."""

    @property
    def boot(self) -> bool:
        """Whether an execution counts as unknown at the first observation, without waiting for a second one."""
        return self.trigger != "reconcile"

    @property
    def covers_all(self) -> bool:
        """Whether it covers all sessions."""
        return not self.sessions and not self.runtime


@dataclass(frozen=True, slots=True)
class DecidedRow:
    """One candidate with its observation and the decision."""

    row: Candidate
    facts: SweepFacts
    seen: Observation
    decision: Decision


@dataclass
class SweepRun:
    """One sweep and its results."""

    scope: SweepScope
    sweep_id: uuid.UUID = field(default_factory=uuid.uuid4)
    started_at: datetime = field(default_factory=timezone.now)
    duration_ms: int = 0
    decided: list[DecidedRow] = field(default_factory=list)
    outcomes: dict[str, ActionOutcome] = field(default_factory=dict)
    """By session id."""
    damaged: list[CorruptRow] = field(default_factory=list)
    """Sessions that were skipped because their rows are corrupt."""


async def run_sweep(
    registry: ExecutionRegistry,
    scope: SweepScope,
    unknown: set[str],
    progress: ProgressCallback = ignore_progress,
) -> SweepRun:
    """Observe every execution that claims to run or should run, decide, and act unless it is a dry run.

    ``unknown`` holds the ids of the executions that the last sweep observed as unknown, and is updated in place.
    """
    result, began = SweepRun(scope), time.monotonic()
    with acting_as(sweep_id=result.sweep_id, cause=f"{scope.trigger} sweep"):
        await _run_sweep(registry, result, unknown, progress)
    result.duration_ms = round((time.monotonic() - began) * 1000)
    if not scope.dry_run:
        seen = [(item.facts.runtime, str(item.seen.observed)) for item in result.decided]
        METRICS_BUFFER.swept(scope.trigger, time.monotonic() - began, seen)
    return result


async def _run_sweep(
    registry: ExecutionRegistry, result: SweepRun, unknown: set[str], progress: ProgressCallback
) -> None:
    scope = result.scope
    rows, result.damaged = await registry.database(
        candidates.load_candidates, registry.boot_id, scope.sessions, scope.runtime
    )
    _report_corrupt_rows(registry, result.damaged)
    acting = _ActionRunner(registry, result, len(rows), progress)
    places = defaultdict(list)
    for row in rows:
        places[row.place.runtime].append(row)
    # Concurrently, so that a slow runtime delays only its own sessions.
    await asyncio.gather(*(_sweep_runtime(acting, name, some, unknown) for name, some in places.items()))
    result.decided = [acting.decided_again.get(item.facts.session_id, item) for item in result.decided]
    unknown.update(item.row.place.id for item in acting.decided_again.values())
    order = {row.place.id: number for number, row in enumerate(rows)}
    result.decided.sort(key=lambda item: order[item.row.place.id])
    if not scope.dry_run:
        crash_points.reached("sweep.written")


class _ActionRunner:
    """Acts on decisions with a limit for each machine, and reports progress."""

    def __init__(self, registry: ExecutionRegistry, result: SweepRun, total: int, progress: ProgressCallback):
        self.registry, self.result = registry, result
        self._total, self._progress, self._done = total, progress, 0
        self._acting = defaultdict[str, asyncio.Semaphore](lambda: asyncio.Semaphore(MAX_CONCURRENT_ACTIONS))
        """By the machine of the execution, because an action may wait for it."""
        self._attaching = asyncio.Semaphore(MAX_CONCURRENT_ATTACHES)
        self._tell = BatchExecutor(registry.database, write_reattachments)
        self.decided_again: dict[str, DecidedRow] = {}
        """Rows by session id whose first decision could not be carried out."""
        progress(0, total)

    def skip(self, count: int) -> None:
        """Count rows as done that need no action."""
        self._done += count
        self._progress(self._done, self._total)

    async def run_all(self, decided: Sequence[DecidedRow]) -> None:
        """Act on all rows, the most urgent first; return when all are done."""
        # Sessions that were working or have prompts come first.
        order = sorted(decided, key=lambda item: not (item.facts.has_open_run or item.facts.has_queued_prompts))
        await asyncio.gather(*map(self._run_one, order))

    async def _run_one(self, item: DecidedRow) -> None:
        limit = self._acting[place_of(item.row.place)]
        if item.decision.agent_action == "reattach":
            limit = self._attaching
        async with limit:
            outcome = await _act_safely(self.registry, self._tell, item)
            if outcome.left_unread:
                item = self._decide_without_end(item)
                outcome = await _act_safely(self.registry, self._tell, item)
            self.result.outcomes[item.facts.session_id] = outcome
        if is_start_decision(item.decision):
            if not item.facts.start_in_flight:
                self.registry.start_slots.under_way -= 1  # its intent is committed and counted there, or there is none
            if self.result.scope.trigger == "reconcile" and not outcome.skipped and not outcome.error:
                # Now, not at the end of the sweep, to restart the agent soon. At boot nothing may be dispatched yet.
                self.registry.listener.start_session(item.row.stored.session_id, outcome.start)
        self._done += 1
        self._progress(self._done, self._total)

    def _decide_without_end(self, item: DecidedRow) -> DecidedRow:
        """Decide again on an execution that has ended, but whose last lines cannot be read now.

        They may contain the end of its turn: until they are read, no more is known than of one that does not answer.
        """
        if is_start_decision(item.decision) and not item.facts.start_in_flight:
            self.registry.start_slots.under_way -= 1  # nothing is started after all
        seen = Observation.unknown(LEFT_UNREAD)
        again = replace(item, seen=seen, decision=decide(item.facts, seen, timezone.now()))
        self.decided_again[item.facts.session_id] = again
        return again


async def _sweep_runtime(acting: _ActionRunner, name: str, rows: Sequence[Candidate], unknown: set[str]) -> None:
    """Observe the executions of one runtime in bulk, then decide and act on each."""
    registry, scope = acting.registry, acting.result.scope
    seen = await _observe_runtime(name, [row.place for row in sorted(rows, key=_last_seen_at)], scope)
    now, decided = timezone.now(), []
    for row in rows:
        attached = registry.stream_of(row.stored.session_id) is not None
        facts = candidates.sweep_facts(
            row,
            seen[row.place.id],
            boot=scope.boot,
            unknown_before=row.place.id in unknown,
            attached=attached,
            now=now,
            admitted=scope.admitted,
        )
        decided.append(DecidedRow(row, facts, seen[row.place.id], decide(facts, seen[row.place.id], now)))
    decided = await _admit_starts(registry, scope, decided, now)
    acting.result.decided += decided
    if scope.dry_run:
        acting.skip(len(rows))
        return
    unknown.difference_update(row.place.id for row in rows)
    unknown.update(item.row.place.id for item in decided if item.seen.observed is Observed.UNKNOWN)
    crash_points.reached("sweep.decided")
    await acting.run_all(decided)
    alive = [item.row for item in decided if item.seen.observed is Observed.ALIVE]
    if old := [row.stored.id for row in alive if timezone.now() - _last_seen_at(row) >= SEEN_RECENTLY]:
        await registry.database(_save_last_seen, registry.boot_id, old)


def _save_last_seen(boot_id: str, alive: Sequence[uuid.UUID]) -> None:
    """Write that these executions were seen alive, if ``boot_id`` owns them.

    An idle agent writes nothing for hours, so ingest does not keep ``last_seen_at`` up to date.
    """
    with transaction.atomic():
        rows = ExecutorRunning.objects.filter(id__in=alive, owner=boot_id)
        # Locked in the order in which ingest locks several rows: in another order both could wait for each other.
        list(rows.select_for_update(no_key=True).order_by("session_id").values_list("id"))
        rows.update(last_seen_at=timezone.now())


def _last_seen_at(row: Candidate) -> datetime:
    """Sort key for observing: an execution silent for longest comes first, and others answer while it times out."""
    return row.stored.last_seen_at or NEVER


async def _admit_starts(
    registry: ExecutionRegistry, scope: SweepScope, decided: list[DecidedRow], now: datetime
) -> list[DecidedRow]:
    """Admit as many of the decided starts as the limits allow; postpone the others to the start queue."""
    wanting = [item for item in decided if is_start_decision(item.decision) and not item.facts.start_in_flight]
    if not wanting:
        return decided
    slots = registry.start_slots
    if scope.dry_run:
        # It counts for itself: what it admits is never started, and must not use up real slots.
        slots = admission.StartSlots()
    gone = {item.row.stored.session_id for item in decided if item.seen.observed is Observed.DEAD}
    allowed = await registry.database(admission.start_allowance, registry.boot_id, slots, gone)
    applicants = [
        Applicant(
            item.row.stored.session_id,
            item.row.stored.session__task__team_id,
            allowed.place_of(item.row.stored.session__executor_id, has_agent=item.facts.has_agent),
            item.facts.has_open_run or item.facts.has_queued_prompts,
            item.row.stored.last_seen_at or item.row.stored.updated_at,
        )
        for item in wanting
    ]
    postponed = allowed.judge(applicants, admitted=scope.admitted)
    return [_with_admission(item, postponed.get(item.row.stored.session_id), now) for item in decided]


def _with_admission(item: DecidedRow, wait: tuple[int, str, int] | None, now: datetime) -> DecidedRow:
    """Replace the decision on a start that has to ``wait``: its rank, the reason, and how many are before it."""
    if wait is None:
        return item
    rank, reason, before = wait
    facts = replace(item.facts, before=before)
    return replace(item, facts=facts, decision=postpone_start(facts, item.seen, now, rank=rank, reason=reason))


def _report_corrupt_rows(registry: ExecutionRegistry, damaged: Sequence[CorruptRow]) -> None:
    """Log each corruption once per process, because sweeps recur every few seconds."""
    for one in damaged:
        if registry.reported_corruption.get(one.session_id) != one.flaws:
            registry.reported_corruption[one.session_id] = one.flaws
            log.error("session %s is skipped: %s", one.session_id, one.flaws)


async def _observe_runtime(name: str, facts: list[ExecutionFacts], scope: SweepScope) -> dict[str, Observation]:
    nothing = {one.id: Observation(Observed.UNKNOWN, reason="runtime_unavailable") for one in facts}
    timeout = scope.timeout or settings.KANDEV_SWEEP_TIMEOUT
    concurrency = scope.concurrency or settings.KANDEV_SWEEP_CONCURRENCY
    try:
        return nothing | await runtime(name).observe(facts, timeout=timeout, concurrency=concurrency)
    except UnknownPlugin as error:
        log.error("%s", error.message)
    except Exception:  # one runtime that fails must not stop the others
        log.exception("runtime %s could not observe its executions", name)
    return nothing


async def _act_safely(registry: ExecutionRegistry, reattach: ReattachExecutor, item: DecidedRow) -> ActionOutcome:
    began, facts = time.monotonic(), item.facts
    cause = f"{current_context().get(CAUSE, 'sweep')}: {item.decision.rule}"
    try:
        with acting_as(session_id=facts.session_id, task_id=facts.task_id, cause=cause):
            outcome = await act_on_decision(registry, reattach, item.row, item.seen, item.decision)
    except Exception as error:  # one bad row never stops a sweep
        if not is_database_outage(error):  # an outage is logged once for all sessions
            log.exception("session %s: the sweep's action failed", item.facts.session_id)
        outcome = ActionOutcome(error=f"{type(error).__name__}: {error}")
    outcome.duration_ms = round((time.monotonic() - began) * 1000)
    if item.decision.agent_action == "none" and item.seen.observed is Observed.ALIVE:
        log.debug("session %s is healthy: %s", facts.session_id, item.decision.rule)
    return outcome


DRAIN_BATCH = 500
"""Lines of a dead agentctl's journal that one transaction writes."""
NO_ANSWER: Final = (RuntimeUnavailable, AgentctlUnreachable, AgentctlForeign)
"""What is raised where nobody could be asked."""
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
    left_unread: bool = False
    """What its dead agentctl left could not be read, so nothing was written."""
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
        name, owner = "", transaction.session.owner
        if owner:
            name = owner.get_username()
        raise_item(transaction, notices.owner_left_notice(str(session_id), name))


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
    values: dict[str, Any] = {**ExecutorRunning.address_columns(seen.url), "pid": seen.pid}
    if seen.state is not None:
        values["state"] = dict(seen.state)
    ExecutorRunning.objects.filter(id=execution_id).update(**values)


async def _write_unattached(
    registry: ExecutionRegistry, row: Candidate, seen: Observation, decision: Decision
) -> ActionOutcome:
    stream = registry.stream_of(row.stored.session_id)
    if stream is not None:
        lease: Lease | None = stream.lease
    else:
        lease = await registry.database(leases.acquire_lease, row.stored.id, registry.boot_id)
    if lease is None:
        return ActionOutcome(skipped=True)
    if stream and seen.report and _agent_is_gone(seen):
        # The report may be ahead of the stream. The agent's last lines show whether it had its prompt: without them
        # the prompt would be held, and the work not continued.
        journal = seen.report["journal"]
        await stream.wait_until_logged(journal["epoch"], journal["last_seq"], JOURNAL_TIMEOUT)
    evidence = ""
    gives_up = decision.session_move == "give_up"
    if seen.observed is Observed.DEAD:
        # Before the decision is written, for the same reason; a crash in between only drains again behind the cursor.
        lines = await _drain_dead(registry, row, lease, execution_registry.LOOKBACK if gives_up else 0)
        if lines is None:
            if stream is None:
                await registry.database(leases.release_leases, registry.boot_id, row.stored.id)
            return ActionOutcome(left_unread=True)
        crash_points.reached("sweep.drained", row.stored.session_id)
        if gives_up:
            evidence = await execution_registry.log_tail_of(lines)
    elif gives_up:
        evidence = await execution_registry.read_log_tail(registry, row.stored.session_id)
    outcome = await registry.database(write_decision, row, seen, decision, lease, evidence)
    crash_points.reached("sweep.row_written", row.stored.session_id)
    if stream is None and decision.agent_action == "none":
        await registry.database(leases.release_leases, registry.boot_id, row.stored.id)
    return outcome


async def _drain_dead(
    registry: ExecutionRegistry, row: Candidate, lease: Lease, lookback: int
) -> list[Mapping[str, Any]] | None:
    """Ingest what a dead agentctl left on disk: the rest of its journal, and the agent's resume token.

    Returns the lines, with ``lookback`` of those that were ingested before; None if the place gives no answer now,
    which does not prove that nothing was left. Everything is read at once, because in some places each reading takes
    seconds. Raises OSError if this process lacks descriptors or memory to read it: then the next sweep tries again.
    What is damaged is left out.
    """
    if registry.left_backoff.reason_to_wait(row.place.id):
        return None
    place = runtime(row.place.runtime)
    epoch, seq = row.stored.journal_epoch, row.stored.journal_seq
    try:
        left = await in_place_thread(row.place, read_left_state, place, row.place, max(seq - lookback, 0), epoch)
    except NO_ANSWER as error:
        registry.left_backoff.record_failure(row.place.id, error.message)
        log.warning("session %s: what its agentctl left cannot be read now: %s", row.stored.session_id, error.message)
        return None
    except (OSError, ValueError, ExecutorError) as error:
        raise_if_exhausted(error)
        log.warning("session %s: what its agentctl left cannot be read: %s", row.stored.session_id, error)
        return []
    registry.left_backoff.reset(row.place.id)
    reported_token, lines = None, list(left.lines)
    batches = [lines[start : start + DRAIN_BATCH] for start in range(0, len(lines), DRAIN_BATCH)]
    if left.resume_token:
        reported_token = {"resume_token": left.resume_token}
        batches = batches or [[]]
    for batch in batches:
        await registry.writer(ingest_batch, row.stored.session_id, lease, batch, reported_token, alive=False)
    return lines


def write_reattachments(batch: Sequence[PendingReattach]) -> list[ActionOutcome | Exception]:
    """Write many reattachments in one transaction; the result of a session whose lease we lost is LeaseLost.

    None of them may move its session: that also locks the task's row, whose holder must not wait for another session.
    """
    with session_transactions({pending.session_id: pending.lease for pending in batch}) as transactions:
        recorded = _load_recorded_takeovers(transactions.values())
        return [_write_reattachment(transactions.get(pending.session_id), pending, recorded) for pending in batch]


def _write_reattachment(
    transaction: SessionTransaction | None, pending: PendingReattach, recorded: Collection[uuid.UUID]
) -> ActionOutcome | Exception:
    if transaction is None:
        return LeaseLost(LeaseLost.__doc__)
    transaction.actor = pending.known
    return _write_changes(transaction, pending.row, pending.seen, pending.decision, recorded)


def write_decision(
    row: Candidate, seen: Observation, decision: Decision, lease: Lease, evidence: str = ""
) -> ActionOutcome:
    """Write one decision under the lease: states, receipt and intents, in one transaction. Raises LeaseLost."""
    with session_transaction(row.stored.session_id, lease) as transaction:
        transaction.log_tail = evidence
        recorded: Collection[uuid.UUID] = ()
        if decision.agent_action == "reattach":
            recorded = _load_recorded_takeovers([transaction])
        return _write_changes(transaction, row, seen, decision, recorded)


def _write_changes(
    transaction: SessionTransaction,
    row: Candidate,
    seen: Observation,
    decision: Decision,
    recorded: Collection[uuid.UUID],
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
        outcome.receipt_kind = _record_reattach(transaction, row, seen, recorded)
        if outcome.receipt_kind:
            transaction.record_reattach()
    _move_session(transaction, decision)
    outcome.start = _create_intents(transaction, decision)
    _place_in_start_queue(transaction, decision)
    crash_points.reached("sweep.row_unwritten", row.stored.session_id)
    return outcome


def _load_recorded_takeovers(transactions: Collection[SessionTransaction]) -> set[uuid.UUID]:
    """Return the sessions that already have a receipt for their current generation."""
    generations = {
        transaction.session.id: transaction.execution.generation
        for transaction in transactions
        if transaction.execution
    }
    receipts = ContinuityReceipt.objects.filter(
        session_id__in=generations, kind=ReceiptKind.REATTACHED, evidence__generation__in=set(generations.values())
    )
    written = receipts.order_by().values_list("session_id", "evidence__generation")
    return {session_id for session_id, generation in written if generations[session_id] == generation}


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
    is_moved_by_intent = decision.agent_action in ("resume", "start_workspace", "stop") and move != "ready"
    if execution is None or move is None or is_moved_by_intent or not EXECUTOR.allows(execution.status, move):
        return  # the start or stop moves the execution itself, once it has happened
    values: dict[str, Any] = {}
    if seen.observed is Observed.ALIVE and seen.seen_at:
        values["last_seen_at"] = seen.seen_at
    if move == "fail":
        values |= {"error_code": decision.session_error_code, "error_message": decision.error_message}
    if move == "stop":
        values |= {"status_reason": decision.reason[:64], "pid": None}
    transaction.move_executor(move, **values)


def _record_reattach(
    transaction: SessionTransaction, row: Candidate, seen: Observation, recorded: Collection[uuid.UUID]
) -> str:
    """Write the receipt of a reattach and return its kind; empty if the lease was released and no line was missed."""
    report = seen.report or {}
    launch_id = str(report.get("agent", {}).get("launch_id") or "")
    if launch_id and transaction.session.launch_id != launch_id:
        transaction.set_fields(launch_id=launch_id)
    # Taking a lease again after an orderly release is not an event (rule 18).
    missed_lines = report.get("journal", {}).get("last_seq", 0) - row.stored.journal_seq
    if not row.stored.owner and missed_lines <= 0:
        return ""
    if transaction.session.id in recorded:
        return ""  # a concurrent sweep of ours has written it
    generation = None
    if transaction.execution:
        generation = transaction.execution.generation
    transaction.write_receipt(
        ReceiptKind.REATTACHED,
        "same_process",
        reason="taken_over",
        evidence={
            "agent_pid": report.get("agent", {}).get("pid"),
            "agent_started_at": report.get("agent", {}).get("started_at"),
            "journal_lines_drained": max(missed_lines, 0),
            "generation": generation,
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
        payload = {}
        if decision.rule == "asleep_but_alive":
            payload["reason"] = IDLE_REASON
        create_intent(transaction.session, IntentKind.STOP, None, payload)
    return None


def _create_start_intent(transaction: SessionTransaction, decision: Decision) -> uuid.UUID | None:
    """Create a start intent that no user requested; its event records why, and on whose behalf."""
    if open_start_intent(transaction.session) is not None:
        return None  # another sweep or a user has already requested it
    mode = Mode.WORKSPACE_ONLY
    if decision.agent_action == "resume" or not transaction.session.has_agent:
        mode = Mode.AUTO
    intent = create_intent(
        transaction.session, IntentKind.START, None, {"mode": mode}, agent_died_at=transaction.session.died_at
    )
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


COUNTED_KINDS = tuple(kind.value for kind in ReceiptKind)
_STORED: Final = (
    *("runtime", "observed", "rule", "executor_status", "session_state", "agent_action", "strategy"),
    *("receipt_kind", "reason", "error_message", "duration_ms"),
)
"""Fields of a document's row that are stored."""
_FOREIGN_RULE: Final = "foreign_lease"
"""The rule for sessions that another supervisor holds."""
_REPORTED: Final = ("rule", "observed", "agent_action", "strategy", "receipt_kind", "reason", "error_message")
"""Fields that a row repeats from the other supervisor's sweep."""


@dataclass(frozen=True, slots=True)
class _CurrentRows:
    """The present states for the document's rows; by session, except ``statuses``."""

    states: Mapping[uuid.UUID, str]
    statuses: Mapping[uuid.UUID, str]
    """By execution id."""
    receipts: Mapping[str, ContinuityReceipt]
    by_supervisor: Mapping[uuid.UUID, dict[str, Any]] = field(default_factory=dict)
    """The newest result of the supervisor that holds a session."""
    ordered: frozenset[uuid.UUID] = frozenset()
    """Sessions with an open start intent."""


def _load_current_rows(result: SweepRun) -> _CurrentRows:
    stored = [item.row.stored for item in result.decided]
    if result.scope.dry_run:  # nothing was changed
        return _CurrentRows(
            states={one.session_id: one.session__state for one in stored},
            statuses={one.id: one.status for one in stored},
            receipts={},
            by_supervisor=_by_supervisor(result),
        )
    ids, executions = [one.session_id for one in stored], [one.id for one in stored]
    ordered = Intent.objects.filter(session_id__in=ids, kind=IntentKind.START, done_at=None)
    return _CurrentRows(
        states=dict(TaskSession.objects.filter(id__in=ids).values_list("id", "state")),
        statuses=dict(ExecutorRunning.objects.filter(id__in=executions).values_list("id", "status")),
        receipts=_receipts(result),
        by_supervisor=_by_supervisor(result),
        ordered=frozenset(ordered.values_list("session_id", flat=True)),
    )


def build_report(result: SweepRun, boot_id: str) -> dict[str, Any]:
    """Build the JSON document of a sweep, with the current states: it includes starts that have ended meanwhile."""
    now = _load_current_rows(result)
    sessions = [_report_row(item, result, now) for item in result.decided]
    counts = dict.fromkeys((*COUNTED_KINDS, SKIPPED), 0)
    for row in sessions:
        if row["result"] == UNDER_WAY:
            counts[SKIPPED] += 1  # a start is counted once it has a receipt
        else:
            counts[row["result"]] += 1
    counts[SKIPPED] += len(result.damaged)
    return {
        "sweep_id": str(result.sweep_id),
        "boot_id": boot_id,
        "trigger": result.scope.trigger,
        "dry_run": result.scope.dry_run,
        "started_at": result.started_at.isoformat(),
        "duration_ms": result.duration_ms,
        "examined": len(result.decided) + len(result.damaged),
        "outcomes": counts,
        "sessions": [*sessions, *map(_corrupt_report_row, result.damaged)],
    }


def _receipts(result: SweepRun) -> dict[str, ContinuityReceipt]:
    """Return the newest receipt of each session since the sweep began, by session id."""
    ids = [item.row.stored.session_id for item in result.decided]
    rows = ContinuityReceipt.objects.filter(session_id__in=ids, created_at__gte=result.started_at)
    return {str(row.session_id): row for row in rows.order_by("after_seq", "created_at")}


def _by_supervisor(result: SweepRun) -> dict[uuid.UUID, dict[str, Any]]:
    """Return what other supervisors last decided on the sessions they hold, with the newest receipt since then."""
    owners = {
        item.row.stored.session_id: item.row.stored.owner
        for item in result.decided
        if item.decision.rule == _FOREIGN_RULE
    }
    if not owners:
        return {}
    outcomes = SweepOutcome.objects.filter(session_id__in=owners, sweep__boot_id__in=set(owners.values()))
    columns = ("session_id", "sweep__boot_id", "sweep_id", "sweep__started_at", *_REPORTED)
    found = {}
    for session_id, owner, sweep_id, began, *values in outcomes.order_by("sweep__started_at").values_list(*columns):
        if owner == owners[session_id]:
            row = dict(zip(_REPORTED, values, strict=True))
            found[session_id] = {"boot_id": owner, "sweep_id": str(sweep_id), "began": began, **row}
    receipts = ContinuityReceipt.objects.filter(session_id__in=found).order_by("after_seq", "created_at")
    for session_id, kind, at in receipts.values_list("session_id", "kind", "created_at"):
        if at >= found[session_id]["began"]:
            found[session_id]["receipt_kind"] = kind
    return {session_id: {**row, "began": row["began"].isoformat()} for session_id, row in found.items()}


def _report_row(item: DecidedRow, result: SweepRun, now: _CurrentRows) -> dict[str, Any]:
    decision, session_id = item.decision, item.facts.session_id
    outcome = result.outcomes.get(session_id, ActionOutcome())
    receipt = now.receipts.get(session_id)
    reported = now.by_supervisor.get(item.row.stored.session_id)
    # The execution's own status becomes STARTING only when a supervisor claims the start.
    ordered = item.row.stored.session_id in now.ordered
    executor_status = now.statuses.get(item.row.stored.id, "")
    if ordered:
        executor_status = str(ExecutorStatus.STARTING)
    receipt_kind, reason, owner = outcome.receipt_kind, decision.reason, ""
    if receipt:
        receipt_kind = receipt.kind
    if reported:
        receipt_kind = reported["receipt_kind"]
    if outcome.skipped and decision.agent_action == "reattach":
        reason = reason or OVERTAKEN
    if receipt and receipt.kind == "failed":
        reason = receipt.reason or reason
    if decision.rule == _FOREIGN_RULE:
        owner = item.row.stored.owner
    row = {
        "session_id": session_id,
        "task_id": item.facts.task_id,
        "task_title": item.row.stored.session__task__title,
        "runtime": item.facts.runtime,
        "observed": str(decision.observed),
        "rule": decision.rule,
        "executor_status": executor_status,
        "session_state": now.states.get(item.row.stored.session_id, ""),
        "agent_action": decision.agent_action,
        "strategy": str(decision.strategy or ""),
        "receipt_kind": receipt_kind,
        "reason": reason,
        "error_message": outcome.error or decision.error_message,
        "owner": owner,
        "by_supervisor": reported,
        "duration_ms": outcome.duration_ms,
    }
    return {**row, "result": _row_result(row, ordered=ordered, dry_run=result.scope.dry_run)}


def _row_result(row: Mapping[str, Any], *, ordered: bool, dry_run: bool) -> str:
    if ordered and not row["receipt_kind"]:
        return UNDER_WAY
    if row["by_supervisor"]:
        return row_result({**row["by_supervisor"], "session_state": row["session_state"]})
    if dry_run:
        return planned_row_result(row)
    return row_result(row)


def _corrupt_report_row(one: CorruptRow) -> dict[str, Any]:
    """Build the row of a session that the sweep skipped as corrupt."""
    return {
        "session_id": str(one.session_id),
        "task_id": str(one.task_id),
        "task_title": one.task_title,
        "runtime": one.runtime,
        "observed": str(Observed.UNKNOWN),
        "rule": DAMAGED_ROW,
        "executor_status": one.executor_status[:10],
        "session_state": one.session_state[:20],
        "agent_action": "none",
        "strategy": "",
        "receipt_kind": "",
        "reason": DAMAGED_ROW,
        "error_message": one.flaws,
        "owner": "",
        "by_supervisor": None,
        "duration_ms": 0,
        "result": SKIPPED,
    }


def store_sweep(document: Mapping[str, Any], result: SweepRun, *, is_requested: bool = False) -> None:
    """Store a sweep and its outcomes; a periodic sweep that decided nothing is stored only if it was requested."""
    decided = [
        row for row, item in zip(document["sessions"], result.decided, strict=False) if not item.decision.is_noop
    ]
    if result.scope.trigger == "reconcile" and not decided and not is_requested:
        return
    rows = decided
    if result.scope.boot:
        rows = document["sessions"]
    with transaction.atomic():
        RecoverySweep.objects.create(
            id=result.sweep_id,
            boot_id=document["boot_id"],
            trigger=result.scope.trigger,
            started_at=result.started_at,
            duration_ms=result.duration_ms,
            examined=document["examined"],
            outcomes=document["outcomes"],
        )
        insert_rows(SweepOutcome, ("sweep", "session", *_STORED), [_outcome_row(result.sweep_id, row) for row in rows])


def _outcome_row(sweep_id: uuid.UUID, row: Mapping[str, Any]) -> tuple[Any, ...]:
    stored = {**row, "reason": row["reason"][:64]}
    return sweep_id, uuid.UUID(row["session_id"]), *(stored[name] for name in _STORED)

"""The sweep: read, observe, decide, act. Boot, loop and command all call the same ``run_sweep``."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Literal

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from executors_app.machine import crash_points
from executors_app.models import ExecutorRunning
from executors_app.plugins import UnknownPlugin, runtime
from executors_app.wire.executions import ExecutionFacts, Observation, Observed
from sessions_app.kernel.actor_context import CAUSE, acting_as, current_context
from sessions_app.kernel.database_threads import MAX_BATCH, BatchExecutor
from sessions_app.metrics.counters import METRICS_BUFFER
from sessions_app.recovery.rules.recovery import decide, is_start_decision, postpone_start
from sessions_app.recovery.rules.recovery_facts import Decision, SweepFacts
from sessions_app.recovery.rules.restart_rules import Applicant
from sessions_app.recovery.rules.resumability import SEEN_RECENTLY
from sessions_app.recovery.sweep import candidates
from sessions_app.recovery.sweep.actions import ActionOutcome, ReattachExecutor, act_on_decision, write_reattachments
from sessions_app.recovery.sweep.candidates import Candidate
from sessions_app.recovery.sweep.selection import CorruptRow
from sessions_app.starts import admission
from sessions_app.supervisor.database_outage import is_database_outage
from sessions_app.supervisor.execution_registry import ExecutionRegistry
from sessions_app.supervisor.place_threads import place_of

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
        reattaches = item.decision.agent_action == "reattach"
        async with self._attaching if reattaches else self._acting[place_of(item.row.place)]:
            outcome = self.result.outcomes[item.facts.session_id] = await _act_safely(self.registry, self._tell, item)
        if is_start_decision(item.decision):
            if not item.facts.start_in_flight:
                self.registry.start_slots.under_way -= 1  # its intent is committed and counted there, or there is none
            if self.result.scope.trigger == "reconcile" and not outcome.skipped and not outcome.error:
                # Now, not at the end of the sweep, to restart the agent soon. At boot nothing may be dispatched yet.
                self.registry.listener.start_session(item.row.stored.session_id, outcome.start)
        self._done += 1
        self._progress(self._done, self._total)


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


def _save_last_seen(me: str, alive: Sequence[uuid.UUID]) -> None:
    """Write that these executions were seen alive, if ``me`` owns them.

    An idle agent writes nothing for hours, so ingest does not keep ``last_seen_at`` up to date.
    """
    with transaction.atomic():
        rows = ExecutorRunning.objects.filter(id__in=alive, owner=me)
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
    # A dry run counts for itself: what it admits is never started, and must not use up real slots.
    slots = admission.StartSlots() if scope.dry_run else registry.start_slots
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
    told = allowed.judge(applicants, admitted=scope.admitted)
    return [_with_admission(item, told.get(item.row.stored.session_id), now) for item in decided]


def _with_admission(item: DecidedRow, told: tuple[int, str, int] | None, now: datetime) -> DecidedRow:
    if told is None:
        return item
    rank, reason, before = told
    facts = replace(item.facts, before=before)
    return replace(item, facts=facts, decision=postpone_start(facts, item.seen, now, rank=rank, reason=reason))


def _report_corrupt_rows(registry: ExecutionRegistry, damaged: Sequence[CorruptRow]) -> None:
    """Log each corruption once per process, because sweeps recur every few seconds."""
    for one in damaged:
        if registry.reported_corruption.get(one.session_id) != one.said:
            registry.reported_corruption[one.session_id] = one.said
            log.error("session %s is skipped: %s", one.session_id, one.said)


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

"""The sweep: read, observe, decide, act. One function for boot, loop and command (design 7)."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from django.conf import settings
from django.utils import timezone

from executors_app import crash_points
from executors_app.domain import ExecutionFacts, Observation, Observed
from executors_app.plugins import UnknownPlugin, runtime
from sessions_app.domain.recovery import Decision, SweepFacts, decide
from sessions_app.supervisor import sweep_rows
from sessions_app.supervisor.core import Core
from sessions_app.supervisor.sweep_act import Outcome, act
from sessions_app.supervisor.sweep_rows import Row

log = logging.getLogger(__name__)
Trigger = Literal["boot", "reconcile", "command"]
Progress = Callable[[int, int], None]
"""Called with (rows done, rows in all)."""
ACTING_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Scope:
    """What a sweep looks at, and how hard."""

    trigger: Trigger
    sessions: Collection[uuid.UUID] = ()
    runtime: str = ""
    concurrency: int = 0
    timeout: float = 0.0
    dry_run: bool = False

    @property
    def boot(self) -> bool:
        """Whether the first unknown is taken at its word."""
        return self.trigger != "reconcile"


@dataclass(frozen=True, slots=True)
class Decided:
    """One row with what was seen and decided."""

    row: Row
    facts: SweepFacts
    seen: Observation
    decision: Decision


@dataclass
class Sweep:
    """One pass and what came of it."""

    scope: Scope
    sweep_id: uuid.UUID = field(default_factory=uuid.uuid4)
    started_at: datetime = field(default_factory=timezone.now)
    duration_ms: int = 0
    decided: list[Decided] = field(default_factory=list)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    """By session id."""


async def sweep(core: Core, scope: Scope, unknown: set[str], progress: Progress = lambda done, total: None) -> Sweep:
    """Look at everything that claims to run, decide, and act unless it is a dry run.

    ``unknown`` holds the execution ids that the last look could not tell anything of; it is brought up to date.
    """
    result, began = Sweep(scope), time.monotonic()
    rows = await core.database(sweep_rows.read, core.boot_id, scope.sessions, scope.runtime)
    seen = await observe(rows, scope)
    now = timezone.now()
    for row in rows:
        attached = core.attached(row.stored.session_id) is not None
        facts = sweep_rows.facts(
            row, seen[row.place.id], boot=scope.boot, unknown_before=row.place.id in unknown, attached=attached, now=now
        )
        result.decided.append(Decided(row, facts, seen[row.place.id], decide(facts, seen[row.place.id], now)))
    if not scope.dry_run:
        unknown.difference_update(row.place.id for row in rows)
        unknown.update(item.row.place.id for item in result.decided if item.seen.observed is Observed.UNKNOWN)
        crash_points.reached("sweep.decided")
        await _act_on_all(core, result, progress)
        crash_points.reached("sweep.written")
    result.duration_ms = round((time.monotonic() - began) * 1000)
    return result


async def observe(rows: Sequence[Row], scope: Scope) -> dict[str, Observation]:
    """Look at every row's execution, one bulk look per runtime, side by side; writes nothing."""
    places = defaultdict(list)
    for row in rows:
        places[row.place.runtime].append(row.place)
    looks = [_observe_runtime(name, facts, scope) for name, facts in places.items()]
    seen: dict[str, Observation] = {}
    for found in await asyncio.gather(*looks):
        seen.update(found)
    return seen


async def _observe_runtime(name: str, facts: list[ExecutionFacts], scope: Scope) -> dict[str, Observation]:
    nothing = {one.id: Observation(Observed.UNKNOWN, reason="runtime_unavailable") for one in facts}
    timeout = scope.timeout or settings.KANDEV_SWEEP_TIMEOUT
    concurrency = scope.concurrency or settings.KANDEV_SWEEP_CONCURRENCY
    try:
        return nothing | await runtime(name).observe(facts, timeout=timeout, concurrency=concurrency)
    except UnknownPlugin as error:
        log.error("%s", error.message)
    except Exception:  # one runtime that fails must not stop the others
        log.exception("runtime %s could not look at its executions", name)
    return nothing


async def _act_on_all(core: Core, result: Sweep, progress: Progress) -> None:
    gate, done = asyncio.Semaphore(ACTING_AT_ONCE), 0

    async def act_on(item: Decided) -> None:
        nonlocal done
        async with gate:
            outcome = await _act_safely(core, item)
        result.outcomes[item.facts.session_id] = outcome
        done += 1
        progress(done, len(result.decided))

    progress(0, len(result.decided))
    await asyncio.gather(*(act_on(item) for item in in_order(result.decided)))


def in_order(decided: Sequence[Decided]) -> list[Decided]:
    """Those that were working or have prompts first (rules, section 7)."""
    return sorted(decided, key=lambda item: not (item.facts.has_open_run or item.facts.has_queued_prompts))


async def _act_safely(core: Core, item: Decided) -> Outcome:
    began = time.monotonic()
    try:
        outcome = await act(core, item.row, item.seen, item.decision)
    except Exception as error:  # one bad row never stops a sweep
        log.exception("session %s: the sweep could not act", item.facts.session_id)
        outcome = Outcome(error=f"{type(error).__name__}: {error}")
    outcome.duration_ms = round((time.monotonic() - began) * 1000)
    return outcome

"""A supervisor for one pass: what ``recover_sessions`` is (design 2)."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.conf import settings
from django.utils import timezone

from sessions_app.domain.states import ENDED_STATES, DesiredState, SessionState
from sessions_app.models import Intent, TaskSession
from sessions_app.supervisor import beat
from sessions_app.supervisor.lock import SupervisorLock
from sessions_app.supervisor.loop import Supervisor
from sessions_app.supervisor.sweep import reporting
from sessions_app.supervisor.sweep.deploy_check import broken_since, live_supervisors
from sessions_app.supervisor.sweep.one_pass import Progress, Scope, Sweep

LOOK_EVERY = 0.1
"""Seconds between two looks at starts that somebody else carries out."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What the command was asked for."""

    scope: Scope
    wait: float = 0.0
    """Seconds to wait for the end of starts; 0: they are left as orders."""
    since: datetime | None = None
    """When the deploy began; None: with the live supervisor, else with this command."""


async def run(ask: Ask, progress: Progress) -> tuple[Sweep, dict[str, Any]]:
    """Sweep once; with ``wait`` return when the starts have ended, whoever did them, or after that many seconds."""
    deadline, began = time.monotonic() + ask.wait, timezone.now()
    with SupervisorLock("sweep") as lock:
        alone = await _take(lock)
        supervisor = Supervisor()
        core = supervisor.core
        try:
            others = await core.database(live_supervisors)  # before our own row is one of them
            began = ask.since or (others[0].started_at if others else began)
            waits = bool(ask.wait) and not ask.scope.dry_run
            swept = await _first_sweep(supervisor, deadline, alone=alone) if waits else True
            if alone and not ask.scope.dry_run:
                await supervisor.open()
            result = await _pass(supervisor, ask.scope, alone=alone, progress=progress)
            if alone and not (ask.scope.sessions or ask.scope.runtime or ask.scope.dry_run):
                await core.database(beat.swept, core.boot_id)  # another command that waits for us need not wait longer
            if waits:
                await _wait_for_starts(supervisor, result, deadline, alone=alone)
                await core.drain_starts()
            document = await core.database(_report, result, core.boot_id, began)
        finally:
            await supervisor.close()
    supervised_by = [row.boot_id for row in others]
    return result, {**document, "supervised_by": supervised_by, "swept": swept, "waited": ask.wait}


def _report(result: Sweep, boot_id: str, began: datetime) -> dict[str, Any]:
    """The document with what it says of a deploy: what is broken, and which starts have not ended."""
    broken = broken_since(began, result)
    ids = [item.row.stored.session_id for item in result.decided]
    return {
        **reporting.report(result, boot_id),
        "since": began.isoformat(),
        "broken": [str(one.session_id) for one in broken if one.by_deploy],
        "broken_before": [str(one.session_id) for one in broken if not one.by_deploy],
        "broken_why": {str(one.session_id): f"is in {one.state}: {one.message}" for one in broken},
        "unfinished": [] if result.scope.dry_run else sorted(map(str, _unfinished(ids))),
    }


async def _first_sweep(supervisor: Supervisor, deadline: float, *, alone: bool) -> bool:
    """Wait until each live supervisor has swept once: before that it has not decided what becomes of its sessions."""
    while True:
        others = await supervisor.core.database(live_supervisors)
        if all(row.swept_at for row in others) and (alone or others):
            return True
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(LOOK_EVERY)


async def _pass(supervisor: Supervisor, scope: Scope, *, alone: bool, progress: Progress) -> Sweep:
    """The sweep; while a server has this database it decides and acts, and this pass only looks."""
    if alone:
        return await supervisor.sweep(scope, progress=progress)
    result = await supervisor.sweep(replace(scope, dry_run=True), progress=progress)
    result.scope = scope  # the report is of what the server does
    return result


async def _take(lock: SupervisorLock) -> bool:
    """The lock of an embedded database; another sweep is waited for, a server is not."""
    deadline = time.monotonic() + settings.KANDEV_LEASE_TTL
    while not lock.take():
        if lock.held_by() in ("supervise", "run") or time.monotonic() > deadline:
            return False
        await asyncio.sleep(LOOK_EVERY)
    return True


async def _wait_for_starts(supervisor: Supervisor, result: Sweep, deadline: float, *, alone: bool) -> None:
    ids = [item.row.stored.session_id for item in result.decided]
    while time.monotonic() < deadline:
        if alone:
            for session_id in ids:
                supervisor.orders.poke(session_id)
            await _settle(supervisor, deadline)
            await _go_on(supervisor, result)
        if not await supervisor.core.database(_open_starts if alone else _unfinished, ids):
            return
        await asyncio.sleep(LOOK_EVERY)


async def _go_on(supervisor: Supervisor, result: Sweep) -> None:
    """Start those whose turn has come; what is decided of them now stands in the place of their waiting."""
    later = await supervisor.admit()
    again = {item.facts.session_id: item for item in later.decided} if later else {}
    result.decided = [again.get(item.facts.session_id, item) for item in result.decided]
    result.outcomes.update(later.outcomes if later else {})


async def _settle(supervisor: Supervisor, deadline: float) -> None:
    try:
        async with asyncio.timeout(max(deadline - time.monotonic(), 0)):
            await supervisor.orders.settle()
    except TimeoutError:
        pass


def _open_starts(ids: Collection[uuid.UUID]) -> set[uuid.UUID]:
    """Those of them of which something is to be done, or that wait for their turn."""
    waits = TaskSession.objects.filter(id__in=ids, start_rank__isnull=False).values_list("id", flat=True)
    orders = Intent.objects.filter(session_id__in=ids, done_at=None).values_list("session_id", flat=True)
    return {*orders, *waits}


def _restarts_to_come(ids: Collection[uuid.UUID]) -> set[uuid.UUID]:
    """Those whose agent has died and is restarted later; without a supervisor nobody does that, and nobody waits.

    One in ERROR has failed to start, and is told as broken.
    """
    rows = TaskSession.objects.filter(id__in=ids, next_restart_at__isnull=False, desired_state=DesiredState.RUNNING)
    rows = rows.filter(task__archived_at=None).exclude(state__in=(SessionState.ERROR, *ENDED_STATES))
    return set(rows.values_list("id", flat=True))


def _unfinished(ids: Collection[uuid.UUID]) -> set[uuid.UUID]:
    return _open_starts(ids) | _restarts_to_come(ids)

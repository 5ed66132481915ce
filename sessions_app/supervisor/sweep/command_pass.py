"""A supervisor for one pass: what ``recover_sessions`` is (design 2)."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Collection
from typing import Any

from django.conf import settings

from sessions_app.models import Intent, TaskSession
from sessions_app.supervisor.lock import SupervisorLock
from sessions_app.supervisor.loop import Supervisor
from sessions_app.supervisor.sweep import reporting
from sessions_app.supervisor.sweep.one_pass import Progress, Scope, Sweep

LOOK_EVERY = 0.1
"""Seconds between two looks at starts that somebody else carries out."""


async def run(scope: Scope, wait: float, progress: Progress) -> tuple[Sweep, dict[str, Any]]:
    """Sweep once; with ``wait`` return when the starts have ended, whoever did them, or after that many seconds."""
    deadline = time.monotonic() + wait
    with SupervisorLock("sweep") as lock:
        alone = await _take(lock)
        supervisor = Supervisor()
        if alone and not scope.dry_run:
            await supervisor.open()
        try:
            result = await _pass(supervisor, scope, alone=alone, progress=progress)
            if wait and not scope.dry_run:
                await _wait_for_starts(supervisor, result, deadline, alone=alone)
                await supervisor.core.drain_starts()
            document = await supervisor.core.database(reporting.report, result, supervisor.core.boot_id)
        finally:
            await supervisor.close()
    return result, document


async def _pass(supervisor: Supervisor, scope: Scope, *, alone: bool, progress: Progress) -> Sweep:
    """The sweep; while a server has this database it decides and acts, and this pass only looks."""
    if not alone:
        scope = Scope("command", scope.sessions, scope.runtime, scope.concurrency, scope.timeout, dry_run=True)
    return await supervisor.sweep(scope, progress=progress)


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
        if not await supervisor.core.database(_open_starts, ids):
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


def _open_starts(ids: Collection[uuid.UUID]) -> bool:
    """Whether something of them is to be done, or waits for its turn."""
    waits = TaskSession.objects.filter(id__in=ids, start_rank__isnull=False)
    return Intent.objects.filter(session_id__in=ids, done_at=None).exists() or waits.exists()

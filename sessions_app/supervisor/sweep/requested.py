"""Sweeps that somebody asked for: which one is next, how far it is, and what came of it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from django.db import transaction
from django.utils import timezone

from sessions_app.models import SweepRequest
from sessions_app.supervisor.core import Core
from sessions_app.supervisor.sweep import reporting
from sessions_app.supervisor.sweep.one_pass import Progress, Scope, Sweep

TOLD_EVERY = 0.5
"""Seconds between two looks at how far it is."""


def next_request() -> SweepRequest | None:
    """The oldest that is not done."""
    return SweepRequest.objects.filter(done_at=None).order_by("created_at", "id").first()


def scope_of(asked: SweepRequest) -> Scope:
    """What is looked at for it: as in a pass of the loop, which takes no first unknown at its word."""
    return Scope("reconcile", sessions=[uuid.UUID(one) for one in asked.sessions], dry_run=asked.dry_run)


@asynccontextmanager
async def telling(core: Core, asked: SweepRequest) -> AsyncIterator[Progress]:
    """Write down how far the sweep is, as long as it goes on and something changes."""
    far: list[tuple[int, int]] = []

    async def tell() -> None:
        told = None
        while True:
            if far and far[-1] != told:
                told = far[-1]
                await core.database(_note, asked.id, *told)
            await asyncio.sleep(TOLD_EVERY)

    task = asyncio.create_task(tell())
    try:
        yield lambda done, total: far.append((done, total))
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def _note(request_id: uuid.UUID, done: int, total: int) -> None:
    SweepRequest.objects.filter(id=request_id, done_at=None).update(rows_done=done, rows_in_all=total)


def settle(asked: SweepRequest, result: Sweep, boot_id: str) -> None:
    """Keep the sweep, unless it was a dry run, and its report; the first to say that it is done is believed."""
    document = reporting.report(result, boot_id)
    with transaction.atomic():
        if not asked.dry_run:
            reporting.store(document, result, asked=True)
        SweepRequest.objects.filter(id=asked.id, done_at=None).update(
            done_at=timezone.now(),
            rows_done=document["examined"],
            rows_in_all=document["examined"],
            sweep_id=None if asked.dry_run else result.sweep_id,
            report=document,
        )

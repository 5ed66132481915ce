"""Sweeps that somebody asked for: which one is next, and what came of it."""

from __future__ import annotations

import uuid

from django.db import transaction
from django.utils import timezone

from sessions_app.models import SweepRequest
from sessions_app.supervisor.sweep import reporting
from sessions_app.supervisor.sweep.one_pass import Scope, Sweep


def next_request() -> SweepRequest | None:
    """The oldest that is not done."""
    return SweepRequest.objects.filter(done_at=None).order_by("created_at", "id").first()


def scope_of(asked: SweepRequest) -> Scope:
    """What is looked at for it: as in a pass of the loop, which takes no first unknown at its word."""
    return Scope("reconcile", sessions=[uuid.UUID(one) for one in asked.sessions], dry_run=asked.dry_run)


def settle(asked: SweepRequest, result: Sweep, boot_id: str) -> None:
    """Keep the sweep, unless it was a dry run, and its report; the first to say that it is done is believed."""
    document = reporting.report(result, boot_id)
    with transaction.atomic():
        if not asked.dry_run:
            reporting.store(document, result, asked=True)
        SweepRequest.objects.filter(id=asked.id, done_at=None).update(
            done_at=timezone.now(), sweep_id=None if asked.dry_run else result.sweep_id, report=document
        )

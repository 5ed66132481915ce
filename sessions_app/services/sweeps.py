"""Asking for a sweep between the loop's own passes; the supervisor carries it out."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

from django.db import transaction

from sessions_app.models import SweepRequest, wakeups


def ask_for_sweep(by: Any, *, dry_run: bool = False, sessions: Iterable[uuid.UUID] = ()) -> SweepRequest:
    """Write down that a sweep is wanted, of these sessions or of whatever claims to run, and wake the supervisor."""
    with transaction.atomic():
        asked = SweepRequest.objects.create(by=by, dry_run=dry_run, sessions=[str(one) for one in sessions])
        transaction.on_commit(wakeups.ring)
    return asked

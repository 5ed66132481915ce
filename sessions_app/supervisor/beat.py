"""The supervisor's own row: that it lives, and whether its first pass is over; times are the database's."""

from __future__ import annotations

from datetime import timedelta

from django.db.models.functions import Now

from executors_app.agentctl import identity
from sessions_app.models import Supervisor

KEPT = timedelta(days=7)
"""How long the rows of dead supervisors stay, to tell whether a lease's owner is dead."""


def register(boot_id: str) -> None:
    """Say that this process supervises, before it takes any lease."""
    Supervisor.objects.filter(beat_at__lt=Now() - KEPT).delete()
    Supervisor.objects.create(
        boot_id=boot_id,
        host_id=identity.host_id(),
        process=identity.of_self().to_json(),
        started_at=Now(),
        beat_at=Now(),
    )


def beat(boot_id: str) -> None:
    """Say that it still lives."""
    Supervisor.objects.filter(boot_id=boot_id).update(beat_at=Now())


def swept(boot_id: str) -> None:
    """Say that its first pass has seen every row: pages may be believed."""
    Supervisor.objects.filter(boot_id=boot_id).update(swept_at=Now())


def unregister(boot_id: str) -> None:
    """It ends in order and holds no lease any more."""
    Supervisor.objects.filter(boot_id=boot_id).delete()

"""How often the processes of this deployment report that they are there, and from when on they are silent."""

from __future__ import annotations

from datetime import timedelta

from django.conf import settings

from sessions_app.hosts.rules import life_signs
from sessions_app.supervisor import leases


def beat_every() -> float:
    """Return the seconds between two signs of life."""
    return life_signs.beat_every(settings.KANDEV_LEASE_TTL, is_shared=leases.is_shared_database())


def silent_after() -> timedelta:
    """Return how long a process may not have reported before it is silent."""
    return timedelta(seconds=life_signs.MISSING * beat_every())

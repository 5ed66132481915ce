"""Processes of hosts that have reported some time ago."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.utils import timezone

from sessions_app.hosts.models import Host, HostProcess
from sessions_app.models import Supervisor


def reported(role: str, seconds_ago: float, *, name: str = "build-1", place: str = "p1", **values: Any) -> HostProcess:
    """Return a process of the host called ``name`` whose last sign of life is ``seconds_ago`` old."""
    at = timezone.now() - timedelta(seconds=seconds_ago)
    host, _ = Host.objects.get_or_create(name=name, defaults={"first_seen_at": at})
    return HostProcess.objects.create(
        host=host, place=place, role=role, release="1.1", started_at=at, beat_at=at, **values
    )


def attended(place: str, *, seconds_ago: float = 0) -> None:
    """Make the supervisor of a place whose last heartbeat is ``seconds_ago`` old, and which has swept."""
    at = timezone.now() - timedelta(seconds=seconds_ago)
    Supervisor.objects.create(boot_id=place, host_id=place, started_at=at, beat_at=at, swept_at=at)

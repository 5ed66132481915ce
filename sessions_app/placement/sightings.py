"""Look for repositories on this host's disk, and record where they are."""

from __future__ import annotations

import uuid
from pathlib import Path

from django.db.models.functions import Now

from executors_app.machine.process import identity
from sessions_app.hosts import heartbeats
from sessions_app.hosts.models import Host, HostProcess
from sessions_app.placement.models import RepositorySighting


def find_own_host() -> int | None:
    """Return the id of the host that this process runs on; None if no process of it has ever reported."""
    here = HostProcess.objects.filter(place=identity.host_id()).order_by("-started_at")
    found = here.values_list("host_id", flat=True).first()
    if found is not None:
        return found
    # After a boot, a supervisor may claim starts before it has reported.
    name, machine = heartbeats.own_host_key()
    return Host.objects.filter(name=name, machine=machine).values_list("id", flat=True).first()


def is_on_disk(path: str) -> bool | None:
    """Whether a git repository is at this path here, by its files alone; None if that cannot be found out now."""
    try:
        return _exists(Path(path, ".git")) or _exists(Path(path, "HEAD"))
    except (OSError, ValueError):  # also of a process without descriptors: that proves nothing
        return None


def _exists(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def record_sighting(repository_id: uuid.UUID, host_id: int, *, is_present: bool) -> None:
    """Record whether a host has a repository; writes only what has changed."""
    known = RepositorySighting.objects.filter(repository_id=repository_id, host_id=host_id)
    if known.filter(is_present=is_present).exists():
        return
    RepositorySighting.objects.update_or_create(
        repository_id=repository_id, host_id=host_id, defaults={"is_present": is_present, "changed_at": Now()}
    )


def record_own_sighting(repository_id: uuid.UUID) -> None:
    """Record that this process has just seen a repository here."""
    host = find_own_host()
    if host is not None:
        record_sighting(repository_id, host, is_present=True)

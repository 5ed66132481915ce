"""Backups: when the newest one was begun, as whoever takes them has recorded it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from django.db.models import Max
from django.utils import timezone

from sessions_app.models import Backup


def record_backup(host: str, began_at: datetime, place: str) -> bool:
    """Record a backup that is complete; return False if the host has recorded a newer one, which stays."""
    values = {"began_at": began_at, "completed_at": timezone.now(), "place": place[:1000]}
    row, is_new = Backup.objects.get_or_create(host=host, defaults=values)
    if is_new:
        return True
    return bool(Backup.objects.filter(host=row.host, began_at__lte=began_at).update(**values))


def newest_backup() -> Backup | None:
    """Return the newest backup of any host; None if none is known."""
    return Backup.objects.order_by("-began_at").first()


def newest_backup_at() -> datetime | None:
    """Return when the newest backup of any host was begun; None if none is known."""
    found: datetime | None = Backup.objects.aggregate(at=Max("began_at"))["at"]
    return found


def newest_backups(hosts: Iterable[str]) -> list[Backup]:
    """Return the newest backup of each of these hosts that has recorded one, the oldest first; one query.

    The database is in each of them, but the portable record of a host's sessions is only in its own.
    """
    return list(Backup.objects.filter(host__in=hosts).order_by("began_at", "host"))

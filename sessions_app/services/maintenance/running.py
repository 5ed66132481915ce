"""Doing the chores, one after another; each tells what came of it, and none stops the others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from django.db import connection
from django.utils import timezone

from sessions_app.models import Chore, Presence
from sessions_app.services.maintenance.events import events
from sessions_app.services.maintenance.files import journals
from sessions_app.services.maintenance.orphans import orphans
from sessions_app.services.maintenance.refs import recovery_refs
from sessions_app.services.maintenance.rows import attention, counts, keys, logins, sweeps, worker
from sessions_app.services.maintenance.work import Work

Progress = Callable[[int, int, str], None]
"""Called with (chores done, chores in all, the one that begins)."""


def presences(work: Work) -> None:
    """Somebody who looked at a page and has left."""
    work.remove_rows(Presence.objects.filter(expires_at__lt=timezone.now()))


def database(work: Work) -> None:
    """Give an embedded database's write-ahead log back to the disk, and let it look at its indexes."""
    if connection.vendor != "sqlite" or connection.in_atomic_block or work.dry_run:
        return  # within a transaction nothing can be given back
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA optimize")
        cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")


CHORES: Final[Mapping[str, Callable[[Work], None]]] = {
    "logins": logins,
    "presences": presences,
    "keys": keys,
    "sweeps": sweeps,
    "attention": attention,
    "worker": worker,
    "journals": journals,
    "recovery_refs": recovery_refs,
    "events": events,
    "orphans": orphans,
    "counts": counts,
    "database": database,
}
"""By name, in the order in which they are done."""


def run(
    names: Collection[str] = (), *, dry_run: bool = False, progress: Progress = lambda done, total, name: None
) -> list[Work]:
    """Do the chores that are named, or all; what came of each. A dry run writes nothing at all."""
    wanted = [name for name in CHORES if not names or name in names]
    done = []
    for number, name in enumerate(wanted):
        progress(number, len(wanted), name)
        done.append(_run(name, dry_run=dry_run))
    progress(len(wanted), len(wanted), "")
    return done


def _run(name: str, *, dry_run: bool) -> Work:
    work = Work(name, dry_run=dry_run)
    if not dry_run:
        Chore.objects.update_or_create(name=name, defaults={"started_at": timezone.now()})
    try:
        CHORES[name](work)
    except Exception as error:  # noqa: BLE001  (one chore never stops the others)
        work.fail(f"{type(error).__name__}: {error}", error)
    if not dry_run:
        _keep(work)
    return work


def _keep(work: Work) -> None:
    now = timezone.now()
    values: dict[str, Any] = {"ended_at": now, "removed": work.removed, "kept": work.kept, "said": work.said}
    values |= {"failed_at": now} if work.failed else {"failed_at": None, "succeeded_at": now}
    Chore.objects.filter(name=work.chore).update(**values)

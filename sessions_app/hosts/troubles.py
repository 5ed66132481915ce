"""What is wrong with the deployment, as items in the inboxes of staff: raised once, and ended when it is over.

Every web server, supervisor and worker looks, because the one that is missing cannot say so. They all read the same
rows by the database's clock, and an item has one key, so it does not matter which of them is first. What only one
process knows, as that its secret key is wrong, is in its row: otherwise the others would end the item each time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator
from datetime import datetime
from typing import Final

from django.db import Error
from django.db.models import Max
from django.template.defaultfilters import filesizeformat

from sessions_app.attention.models import raise_for_deployment, resolve_for_deployment
from sessions_app.attention.rules import notices
from sessions_app.attention.rules.notices import DISK_LOW_KEY, AttentionKind, Notice
from sessions_app.hosts import services
from sessions_app.hosts.models import HostProcess, Role
from sessions_app.hosts.rules.troubles import LOW_BYTES, RAISE_AFTER, is_backup_old, is_disk_low, is_missing
from sessions_app.hosts.supervision import bound_executions, unattended_hosts
from sessions_app.kernel.rules.wording import plural
from sessions_app.maintenance.backups import newest_backup, newest_backups
from sessions_app.models import AttentionItem
from sessions_app.supervisor import leases

log = logging.getLogger(__name__)
LOOK_EVERY: Final = 60.0
"""Seconds between two looks of one process: a few queries, and no write while nothing changes."""
OVER: Final = "over"
"""Resolution of an item whose trouble is over."""


class TroubleWatch:
    """Looks after the items of the deployment from time to time, for one process."""

    def __init__(self) -> None:
        self._began = self._next_at = time.monotonic()

    def look_if_due(self) -> None:
        """Raise and end items if the last look is ``LOOK_EVERY`` old. Never raises an Exception: a failure is logged.

        A process that has just started raises nothing: what starts with it, as after a boot of the machine, is not
        missing.
        """
        now = time.monotonic()
        if now < self._next_at:
            return
        self._next_at = now + LOOK_EVERY
        try:
            update_troubles(may_raise=now - self._began >= RAISE_AFTER.total_seconds())
        except Error as error:
            log.info("what is wrong with the deployment cannot be looked at: %s", error)
        except Exception:  # the worker and the signs of life of a web server would end with it
            log.exception("what is wrong with the deployment cannot be looked at")


def update_troubles(*, may_raise: bool = True) -> None:
    """Raise an item for each trouble that has none, and end those whose trouble is over. Raises django.db.Error."""
    rows = AttentionItem.objects.filter(kind=AttentionKind.SYSTEM, resolved_at=None)
    known = set(rows.values_list("key", flat=True))
    found = {notice.key: notice for notice in find_troubles(known)}
    if may_raise:
        for key in found.keys() - known:
            raise_for_deployment(found[key])
    over = known - found.keys()
    if over:
        resolve_for_deployment(over, OVER)


def find_troubles(known: Collection[str]) -> Iterator[Notice]:
    """Yield a notice of each trouble; ``known``: the keys of those that are shown already."""
    now = leases.database_now()
    yield from _missing_worker(known, now)
    yield from _unattended_hosts(known, now)
    yield from _full_disks(known)
    if with_wrong_key := services.processes_with_wrong_key():
        yield notices.secret_key_notice(with_wrong_key)
    yield from _old_backups(now)


def _missing_worker(known: Collection[str], now: datetime) -> Iterator[Notice]:
    since = services.worker_down_since()
    if since is None:
        return
    notice = notices.worker_missing_notice(_moment(since))
    if is_missing(since, now, was_missing=notice.key in known):
        yield notice


def _unattended_hosts(known: Collection[str], now: datetime) -> Iterator[Notice]:
    unattended = unattended_hosts(bound_executions())
    if not unattended:
        return
    supervisors = HostProcess.objects.filter(role=Role.SUPERVISOR, host__name__in=unattended).order_by()
    seen = dict(supervisors.values_list("host__name").annotate(at=Max("beat_at")))
    for host, agents in unattended.items():
        since = seen.get(host)
        notice = notices.host_unattended_notice(host, agents, _moment(since))
        if is_missing(since, now, was_missing=notice.key in known):
            yield notice


def _full_disks(known: Collection[str]) -> Iterator[Notice]:
    reported = services.free_bytes_by_host()
    for host, free in reported.items():
        notice = _disk_low(host, free)
        if is_disk_low(free, was_low=notice.key in known):
            yield notice
    # Nobody knows that a disk has room again whose host is silent.
    shown = {key.removeprefix(DISK_LOW_KEY) for key in known if key.startswith(DISK_LOW_KEY)}
    if unknown := shown - reported.keys():
        for host, free in services.last_free_bytes(unknown).items():
            yield _disk_low(host, free)


def _disk_low(host: str, free: int) -> Notice:
    return notices.disk_low_notice(host, filesizeformat(free), filesizeformat(LOW_BYTES))


def _old_backups(now: datetime) -> Iterator[Notice]:
    """Yield a notice of each host in use whose own newest backup is too old; if none has one, of the newest of any."""
    limit = services.max_backup_age()
    hours = plural(round(limit / 3600), "1 hour", "{} hours")
    taken = newest_backups(services.hosts_in_use())
    for backup in taken:
        if is_backup_old(backup.began_at, now, limit):
            yield notices.host_backup_old_notice(
                backup.host, _moment(backup.began_at), backup.place or backup.host, hours
            )
    newest = newest_backup()
    if newest is not None and not taken and is_backup_old(newest.began_at, now, limit):
        yield notices.backup_old_notice(_moment(newest.began_at), newest.place or newest.host, hours)


def _moment(at: datetime | None) -> str:
    if at is None:
        return ""
    return f"{at:%Y-%m-%d %H:%M} UTC"

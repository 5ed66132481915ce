"""One run of one chore: its limits and its result."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import models, transaction
from django.utils import timezone

from sessions_app.metrics import models as metric_counts

log = logging.getLogger(__name__)
TIME_BUDGET: Final = 20.0
"""Seconds after which a chore leaves the rest to the next run."""
DELETE_BATCH: Final = 200
"""Maximum number of rows that one transaction deletes."""
MAX_NOTES: Final = 20
"""Maximum number of notes kept of one run; all of them are logged."""
REMOVED_METRIC: Final = "kandev_maintenance_removed_total"
Rows = models.QuerySet[Any]


@dataclass
class ChoreRun:
    """What one run of a chore has done so far; a dry run counts and changes nothing."""

    chore: str
    dry_run: bool = False
    removed: int = 0
    kept: int = 0
    failed: bool = False
    said: list[str] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    """Why each thing was kept, by its name, for chores that give a reason for each."""
    deadline: float = field(default_factory=lambda: time.monotonic() + TIME_BUDGET)

    @property
    def is_over(self) -> bool:
        """Whether the time is up, so that the next run does the rest."""
        return time.monotonic() > self.deadline

    def note(self, text: str, **about: str) -> None:
        """Note why something is kept, or what is odd."""
        log.info("maintenance, %s: %s", self.chore, text, extra={"chore": self.chore, **about})
        if len(self.said) < MAX_NOTES:
            self.said.append(text)

    def keep(self, name: str, reason: str, **about: str) -> None:
        """Note why one thing is kept."""
        self.kept += 1
        self.reasons[name] = reason
        self.note(f"{name} stays: {reason}", **about)

    def fail(self, text: str, error: BaseException | None = None, **about: str) -> None:
        """Record a failure; the chore continues with the rest."""
        log.warning("maintenance, %s: %s", self.chore, text, exc_info=error, extra={"chore": self.chore, **about})
        self.failed = True
        if len(self.said) < MAX_NOTES:
            self.said.append(text)

    def act(self, what: str, do: Callable[[], bool], **about: str) -> None:
        """Remove one thing that nothing references, log it and count it; a dry run only counts.

        ``do`` returns whether it removed the thing. If it raises, the failure is recorded and the chore continues.
        """
        if self.dry_run:
            self.removed += 1
            self._say(f"would remove {what}")
            return
        try:
            gone = do()
        except Exception as error:  # noqa: BLE001  (one failure never stops the others)
            self.fail(f"{what} could not be removed: {error}", None, **about)
            return
        if not gone:
            self.kept += 1
            return
        self.removed += 1
        self._say(f"removed {what}", **about)
        metric_counts.count_in_transaction([(REMOVED_METRIC, {"chore": self.chore}, 1)])

    def _say(self, text: str, **about: str) -> None:
        log.info("maintenance, %s: %s", self.chore, text, extra={"chore": self.chore, **about})

    def remove_rows(self, rows: Rows, before: Callable[[Sequence[Any]], None] = lambda ids: None) -> None:
        """Delete rows in small transactions; if a batch fails, delete its rows one by one.

        ``before`` is called in each transaction with the primary keys.
        """
        if self.dry_run:
            self.removed += rows.count()
            return
        rows, stuck = rows.order_by("pk"), list[Any]()
        while not self.is_over:
            ids = list(rows.exclude(pk__in=stuck).values_list("pk", flat=True)[:DELETE_BATCH])
            if not ids:
                return
            try:
                self._remove(rows, ids, before)
            except Exception:  # noqa: BLE001  (reported below, for the row that causes it)
                stuck += self._one_by_one(rows, ids, before)

    def _one_by_one(self, rows: Rows, ids: Iterable[Any], before: Callable[[Sequence[Any]], None]) -> list[Any]:
        stuck = []
        for key in ids:
            try:
                self._remove(rows, [key], before)
            except Exception as error:  # noqa: BLE001
                stuck.append(key)
                self.fail(f"{rows.model._meta.verbose_name} {key} could not be removed: {error}")
        return stuck

    def _remove(self, rows: Rows, ids: Sequence[Any], before: Callable[[Sequence[Any]], None]) -> None:
        with transaction.atomic():
            before(ids)
            rows.filter(pk__in=ids).order_by().delete()
            metric_counts.count_in_transaction([(REMOVED_METRIC, {"chore": self.chore}, len(ids))])
        self.removed += len(ids)
        self._say(f"removed {len(ids)} × {rows.model._meta.verbose_name}")


def cutoff_before(seconds: float) -> datetime | None:
    """Return the time before which something is old enough to delete; None: never."""
    if seconds:
        return timezone.now() - timedelta(seconds=seconds)
    return None

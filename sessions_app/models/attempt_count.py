"""How often something was tried lately. All processes count together, and a restart forgets nothing."""

from __future__ import annotations

import secrets
from datetime import timedelta
from typing import Final

from django.db import connection, models, transaction
from django.db.models import F
from django.utils import timezone

MOST_ROWS: Final = 50_000
"""Counts that are kept at once, for whoever tries from ever new addresses; about 10 MB."""
_TRIMMED_EVERY: Final = 100
"""About one in so many new counts deletes those that are over."""


class AttemptCount(models.Model):
    """The attempts of one kind by one caller, within a window of time that begins with the first."""

    key = models.CharField(max_length=64, primary_key=True)
    """SHA-256 of kind and caller, so that no row tells a name or an address."""
    tries = models.PositiveIntegerField()
    ends_at = models.DateTimeField(db_index=True)

    class Meta:
        db_table = "attempt_counts"
        ordering = ("ends_at",)

    def __str__(self) -> str:
        return f"{self.tries} attempts until {self.ends_at}"

    @classmethod
    def add(cls, key: str, window: timedelta) -> int:
        """Count one attempt; how many there were in this window, with this one."""
        now = timezone.now()
        adapt = connection.ops.adapt_datetimefield_value
        with transaction.atomic(), connection.cursor() as cursor:
            # One statement: of many attempts at once each gets a number of its own.
            cursor.execute(
                "INSERT INTO attempt_counts (key, tries, ends_at) VALUES (%s, 1, %s) ON CONFLICT (key) DO UPDATE SET"
                " tries = CASE WHEN attempt_counts.ends_at <= %s THEN 1 ELSE attempt_counts.tries + 1 END, ends_at ="
                " CASE WHEN attempt_counts.ends_at <= %s THEN EXCLUDED.ends_at ELSE attempt_counts.ends_at END"
                " RETURNING tries",
                [key, adapt(now + window), adapt(now), adapt(now)],
            )
            tries = int(cursor.fetchone()[0])
        if tries == 1 and secrets.randbelow(_TRIMMED_EVERY) == 0:
            cls.trim()
        return tries

    @classmethod
    def take_back(cls, key: str) -> None:
        """One attempt less."""
        cls.objects.filter(key=key, tries__gt=0).update(tries=F("tries") - 1)

    @classmethod
    def live(cls, key: str) -> AttemptCount | None:
        """The count whose window is not over; None where nothing was tried."""
        return cls.objects.filter(key=key, ends_at__gt=timezone.now()).first()

    @classmethod
    def trim(cls) -> None:
        """Delete the counts that are over, and those that end first where there are too many."""
        cls.objects.filter(ends_at__lte=timezone.now()).delete()
        last_kept = (
            cls.objects.order_by("-ends_at").values_list("ends_at", flat=True)[MOST_ROWS : MOST_ROWS + 1].first()
        )
        if last_kept is not None:
            cls.objects.filter(ends_at__lte=last_kept).delete()

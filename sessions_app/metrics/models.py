"""The counters of the metrics."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Final

from django.db import connection, models, transaction
from django.db.models import Sum
from django.utils import timezone

FOLD_AFTER: Final = timedelta(hours=1)
"""Parts that have not changed for this long are merged into one."""
Labels = Mapping[str, str]
Count = tuple[str, Labels, float]
"""Series name, labels, increment."""


class MetricCount(models.Model):
    """One part of a counter; the counter's value is the sum of its parts.

    Each process adds to parts of its own, so that no two wait for the same row.
    """

    name = models.CharField(max_length=100)
    """Series name, such as ``kandev_sweep_duration_seconds_bucket``."""
    labels = models.CharField(max_length=200, blank=True, default="{}")
    """A JSON object with its names in order."""
    part = models.CharField(max_length=64, blank=True, default="")
    """The process that adds to it; empty: merged parts."""
    value = models.FloatField(default=0)
    updated_at = models.DateTimeField(default=timezone.now)

    class Meta:
        db_table = "metric_counts"
        ordering = ("name", "labels", "part")
        constraints = (models.UniqueConstraint(fields=("name", "labels", "part"), name="one_metric_part"),)

    def __str__(self) -> str:
        return f"{self.name} {self.labels}: {self.value:g}"


def add_counts(counts: Sequence[Count], part: str) -> None:
    """Add to the counters' parts named ``part``, in one short transaction of its own."""
    if not counts:
        return
    now = connection.ops.adapt_datetimefield_value(timezone.now())
    # Sorted: two processes that add to the same parts lock them in the same order and cannot deadlock.
    rows = sorted((name, _labels_text(labels), part, value, now) for name, labels, value in counts)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO metric_counts (name, labels, part, value, updated_at) VALUES (%s, %s, %s, %s, %s)"
            " ON CONFLICT (name, labels, part) DO UPDATE"
            " SET value = metric_counts.value + EXCLUDED.value, updated_at = EXCLUDED.updated_at",
            rows,
        )


def count_in_transaction(counts: Iterable[Count]) -> None:
    """Count in the caller's transaction, so that the count commits or rolls back with it.

    Inserts new parts instead of updating one, so that transactions do not wait for each other.
    """
    part = uuid.uuid4().hex
    rows = [
        MetricCount(name=name, labels=_labels_text(labels), part=part, value=value) for name, labels, value in counts
    ]
    MetricCount.objects.bulk_create(rows)


def read_totals() -> dict[str, list[tuple[dict[str, str], float]]]:
    """Return all counters by series name, each with its labels; one query."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    rows = MetricCount.objects.order_by("name", "labels").values_list("name", "labels").annotate(value=Sum("value"))
    for name, labels, value in rows:
        found.setdefault(name, []).append((json.loads(labels), value))
    return found


def fold_counts() -> int:
    """Merge parts that no longer change and return how many were merged; no counter changes its value."""
    with transaction.atomic():
        old = MetricCount.objects.exclude(part="").filter(updated_at__lt=timezone.now() - FOLD_AFTER)
        parts = list(old.select_for_update().values_list("id", "name", "labels", "value"))
        if not parts:
            return 0
        add_counts([(name, json.loads(labels), value) for _, name, labels, value in parts], "")
        for start in range(0, len(parts), 500):
            MetricCount.objects.filter(id__in=[row[0] for row in parts[start : start + 500]]).delete()
    return len(parts)


def _labels_text(labels: Labels) -> str:
    return json.dumps(dict(labels), sort_keys=True)

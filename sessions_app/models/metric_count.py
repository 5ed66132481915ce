"""Numbers that no row knows: how long passes took, how often a session was given up, what deleted rows have counted.

A number is the sum of its parts. Each supervisor adds to parts of its own, and whoever counts within a
transaction of his makes a new part, so that nobody ever waits for another's count.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Final

from django.db import connection, models, transaction
from django.db.models import Sum
from django.utils import timezone

FOLDED_AFTER: Final = timedelta(hours=1)
"""Parts that nobody added to for so long become one."""
Labels = Mapping[str, str]
Count = tuple[str, Labels, float]
"""Name of the series, its labels, and what is added."""


class MetricCount(models.Model):
    """One part of one number."""

    name = models.CharField(max_length=100)
    """Of the series, such as ``kandev_sweep_duration_seconds_bucket``."""
    labels = models.CharField(max_length=200, blank=True, default="{}")
    """A JSON object with its names in order."""
    part = models.CharField(max_length=64, blank=True, default="")
    """Whose; empty: what was folded together."""
    value = models.FloatField(default=0)
    updated_at = models.DateTimeField(default=timezone.now)

    class Meta:
        db_table = "metric_counts"
        ordering = ("name", "labels", "part")
        constraints = (models.UniqueConstraint(fields=("name", "labels", "part"), name="one_metric_part"),)

    def __str__(self) -> str:
        return f"{self.name} {self.labels}: {self.value:g}"


def add(counts: Sequence[Count], part: str) -> None:
    """Add to the parts of ``part``; in one short transaction of its own, so that nothing waits for it."""
    if not counts:
        return
    now = connection.ops.adapt_datetimefield_value(timezone.now())
    rows = sorted((name, _text(labels), part, value, now) for name, labels, value in counts)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO metric_counts (name, labels, part, value, updated_at) VALUES (%s, %s, %s, %s, %s)"
            " ON CONFLICT (name, labels, part) DO UPDATE"
            " SET value = metric_counts.value + EXCLUDED.value, updated_at = EXCLUDED.updated_at",
            rows,
        )


def count_with(counts: Iterable[Count]) -> None:
    """Count in the caller's transaction, true exactly if that is."""
    part = uuid.uuid4().hex
    rows = [MetricCount(name=name, labels=_text(labels), part=part, value=value) for name, labels, value in counts]
    MetricCount.objects.bulk_create(rows)


def totals() -> dict[str, list[tuple[dict[str, str], float]]]:
    """Every number by the name of its series, each with its labels; one query."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    rows = MetricCount.objects.order_by("name", "labels").values_list("name", "labels").annotate(value=Sum("value"))
    for name, labels, value in rows:
        found.setdefault(name, []).append((json.loads(labels), value))
    return found


def fold() -> int:
    """Make one of the parts that nobody adds to any more; returns how many went. No number changes by it."""
    with transaction.atomic():
        old = MetricCount.objects.exclude(part="").filter(updated_at__lt=timezone.now() - FOLDED_AFTER)
        parts = list(old.select_for_update().values_list("id", "name", "labels", "value"))
        if not parts:
            return 0
        add([(name, json.loads(labels), value) for _, name, labels, value in parts], "")
        for start in range(0, len(parts), 500):
            MetricCount.objects.filter(id__in=[row[0] for row in parts[start : start + 500]]).delete()
    return len(parts)


def _text(labels: Labels) -> str:
    return json.dumps(dict(labels), sort_keys=True)

"""Tables about operating the deployment: supervisors, sweeps and requests for them, maintenance, metric counts."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Final

from django.conf import settings
from django.db import connection, models, transaction
from django.db.models import Sum
from django.db.models.functions import Now
from django.utils import timezone

from executors_app.orm import ListField, ObjectField
from sessions_app.accounts.team_scope import TeamModel
from sessions_app.models.session import TaskSession


class RecoverySweep(models.Model):
    """One pass of the sweep: at boot, by command, or a periodic one that decided something."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    boot_id = models.CharField(max_length=64)
    trigger = models.CharField(max_length=10)
    started_at = models.DateTimeField()
    duration_ms = models.PositiveIntegerField(default=0)
    examined = models.PositiveIntegerField(default=0)
    outcomes = ObjectField(default=dict)

    class Meta:
        db_table = "recovery_sweeps"
        ordering = ("-started_at", "id")

    def __str__(self) -> str:
        return f"{self.trigger} sweep of {self.examined}"


class SweepOutcome(TeamModel):
    """What one sweep observed and decided for one session."""

    team_path = "session__task__team"

    sweep = models.ForeignKey(RecoverySweep, models.CASCADE, related_name="rows")
    session = models.ForeignKey(TaskSession, models.CASCADE, related_name="sweep_outcomes")
    runtime = models.CharField(max_length=32, blank=True, default="")
    observed = models.CharField(max_length=10, blank=True, default="")
    rule = models.CharField(max_length=64)
    executor_status = models.CharField(max_length=10, blank=True, default="")
    session_state = models.CharField(max_length=20, blank=True, default="")
    agent_action = models.CharField(max_length=20, default="none")
    strategy = models.CharField(max_length=16, blank=True, default="")
    receipt_kind = models.CharField(max_length=16, blank=True, default="")
    reason = models.CharField(max_length=64, blank=True, default="")
    error_message = models.TextField(blank=True, default="")
    duration_ms = models.PositiveIntegerField(default=0)

    class Meta(TeamModel.Meta):
        db_table = "sweep_outcomes"
        ordering = ("id",)

    def __str__(self) -> str:
        return f"{self.rule}: {self.agent_action}"


class Supervisors(models.QuerySet["Supervisor"]):
    """Queries for supervisors."""

    def alive(self) -> Supervisors:
        """Supervisors whose heartbeat is younger than a lease, by the database's clock."""
        return self.filter(beat_at__gte=Now() - timedelta(seconds=settings.KANDEV_LEASE_TTL))


class Supervisor(models.Model):
    """A supervisor process, running or past: its heartbeat, and when it last swept."""

    boot_id = models.CharField(primary_key=True, max_length=64)
    host_id = models.CharField(max_length=200)
    process = ObjectField(default=dict)
    """Its process identity: pid, start time, boot id, pid namespace."""
    started_at = models.DateTimeField()
    beat_at = models.DateTimeField()
    swept_at = models.DateTimeField(null=True, blank=True)

    objects = Supervisors.as_manager()

    class Meta:
        db_table = "supervisors"
        ordering = ("-started_at",)

    def __str__(self) -> str:
        return f"supervisor {self.boot_id[:8]}"


class SweepRequest(models.Model):
    """A request for a sweep. Any supervisor may carry it out; running it twice is harmless."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+")
    sessions = models.JSONField(default=list, blank=True)
    """Ids of the sessions to examine; empty: all that claim to run."""
    dry_run = models.BooleanField(default=False)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    rows_done = models.PositiveIntegerField(default=0)
    rows_in_all = models.PositiveIntegerField(null=True, blank=True)
    """Number of sessions to examine; None: not begun."""
    done_at = models.DateTimeField(null=True, blank=True)
    sweep = models.ForeignKey(RecoverySweep, models.SET_NULL, null=True, blank=True, related_name="requests")
    """Its result; a dry run leaves only its report."""
    report = models.JSONField(null=True, blank=True)
    """The document of ``recover_sessions --json``."""

    class Meta:
        db_table = "sweep_requests"
        ordering = ("-created_at", "id")
        indexes = (
            models.Index(fields=("created_at",), name="sweep_request_open", condition=models.Q(done_at__isnull=True)),
        )

    def __str__(self) -> str:
        return f"{'dry run' if self.dry_run else 'sweep'} asked at {self.created_at:%Y-%m-%d %H:%M:%S}"


class Chore(models.Model):
    """One kind of maintenance and its last run."""

    name = models.CharField(primary_key=True, max_length=32)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    """Before ``started_at``: it runs, or was killed; the next run does the rest."""
    succeeded_at = models.DateTimeField(null=True, blank=True)
    failed_at = models.DateTimeField(null=True, blank=True)
    """None: the last run succeeded."""
    removed = models.PositiveIntegerField(default=0)
    kept = models.PositiveIntegerField(default=0)
    """Number of things examined and kept, because it is not proven that nothing needs them."""
    said = ListField(default=list, blank=True)
    """For staff: what failed, and why something was kept."""

    class Meta:
        db_table = "maintenance_chores"
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name


class Leftover(models.Model):
    """Files and refs that a deleted session left behind; the row goes when all of them are removed.

    It is written in the transaction of the deletion and proves it: a session that is merely missing from the database
    may come back when a backup is restored, so its files must stay.
    """

    session_id = models.UUIDField(primary_key=True)
    executions = ListField(default=list, blank=True)
    """Ids of its executions."""
    repository_path = models.CharField(max_length=4096, blank=True, default="")
    deleted_at = models.DateTimeField(default=timezone.now)
    files_gone = models.BooleanField(default=False)
    """Whether journals and homes on this machine were removed."""
    refs_gone = models.BooleanField(default=False)

    class Meta:
        db_table = "session_leftovers"
        ordering = ("deleted_at", "session_id")

    def __str__(self) -> str:
        return f"left by session {str(self.session_id)[:8]}"


class Orphaned(models.Model):
    """A place with this deployment's marks that belongs to no row, as the last check found it."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    runtime = models.CharField(max_length=64)
    name = models.CharField(max_length=200)
    """Its name in its runtime, for example the container's."""
    execution_id = models.CharField(max_length=64, blank=True, default="")
    status = models.CharField(max_length=64, blank=True, default="")
    first_seen_at = models.DateTimeField(default=timezone.now)
    last_seen_at = models.DateTimeField(default=timezone.now)

    class Meta:
        db_table = "orphans"
        verbose_name, verbose_name_plural = "orphaned execution", "orphaned executions"
        ordering = ("runtime", "name")
        constraints = (models.UniqueConstraint(fields=("runtime", "name"), name="one_orphan_per_place_and_name"),)

    def __str__(self) -> str:
        return f"{self.runtime}: {self.name}"


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

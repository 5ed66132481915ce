"""The supervisors, and their signs of life."""

from __future__ import annotations

from datetime import timedelta

from django.conf import settings
from django.db import models
from django.db.models.functions import Now

from executors_app.orm import ObjectField


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

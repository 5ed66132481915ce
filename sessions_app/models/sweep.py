"""One look at everything that claims to run, and what was decided for each."""

from __future__ import annotations

import uuid
from datetime import timedelta

from django.conf import settings
from django.db import models
from django.db.models.functions import Now

from executors_app.json_fields import ObjectField
from sessions_app.models.scoping import TeamModel
from sessions_app.models.session import TaskSession


class RecoverySweep(models.Model):
    """One pass of the sweep: at boot, by command, or of the loop where something was decided."""

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
        abstract = False
        db_table = "sweep_outcomes"
        ordering = ("id",)

    def __str__(self) -> str:
        return f"{self.rule}: {self.agent_action}"


class Supervisors(models.QuerySet["Supervisor"]):
    """The rows of supervisors."""

    def alive(self) -> Supervisors:
        """Those whose beat is younger than a lease lives, by the database's clock."""
        return self.filter(beat_at__gte=Now() - timedelta(seconds=settings.KANDEV_LEASE_TTL))


class Supervisor(models.Model):
    """A supervisor process that lives or lived; its beat says whether, its sweep whether pages may be believed."""

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

"""What the maintenance knows: how its chores went, what deleted sessions have left behind, what belongs to nobody."""

from __future__ import annotations

import uuid

from django.db import models
from django.utils import timezone

from executors_app.json_fields import ListField


class Chore(models.Model):
    """One kind of maintenance and its last run."""

    name = models.CharField(primary_key=True, max_length=32)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    """Before ``started_at``: it runs, or was killed; the next run does what is left."""
    succeeded_at = models.DateTimeField(null=True, blank=True)
    failed_at = models.DateTimeField(null=True, blank=True)
    """None: the last run went well."""
    removed = models.PositiveIntegerField(default=0)
    kept = models.PositiveIntegerField(default=0)
    """What was looked at and is not proven to be worth nothing."""
    said = ListField(default=list, blank=True)
    """What went wrong, and why something was kept; texts for staff."""

    class Meta:
        db_table = "maintenance_chores"
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name


class Leftover(models.Model):
    """What a deleted session has left on disks; written with its deletion, gone when all of it is removed.

    It is the proof that somebody deleted the session: one that is merely not in the database may come
    back with the next copy of it.
    """

    session_id = models.UUIDField(primary_key=True)
    executions = ListField(default=list, blank=True)
    """Ids of its executions."""
    repository_path = models.CharField(max_length=4096, blank=True, default="")
    deleted_at = models.DateTimeField(default=timezone.now)
    files_gone = models.BooleanField(default=False)
    """Of this machine: journals and homes."""
    refs_gone = models.BooleanField(default=False)

    class Meta:
        db_table = "session_leftovers"
        ordering = ("deleted_at", "session_id")

    def __str__(self) -> str:
        return f"left by session {str(self.session_id)[:8]}"


class Orphaned(models.Model):
    """Something that carries this deployment's marks and belongs to no row, as the last look found it."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    runtime = models.CharField(max_length=64)
    name = models.CharField(max_length=200)
    """Where it lives, for example a container's."""
    execution_id = models.CharField(max_length=64, blank=True, default="")
    status = models.CharField(max_length=64, blank=True, default="")
    first_seen_at = models.DateTimeField(default=timezone.now)
    last_seen_at = models.DateTimeField(default=timezone.now)

    class Meta:
        db_table = "orphans"
        ordering = ("runtime", "name")
        constraints = (models.UniqueConstraint(fields=("runtime", "name"), name="one_orphan_per_place_and_name"),)

    def __str__(self) -> str:
        return f"{self.runtime}: {self.name}"

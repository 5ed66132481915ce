"""What maintenance did, what it still has to delete, and what belongs to nothing."""

from __future__ import annotations

import uuid

from django.db import models
from django.utils import timezone

from executors_app.orm import ListField


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
        verbose_name, verbose_name_plural = "orphaned process", "orphaned processes"
        ordering = ("runtime", "name")
        constraints = (models.UniqueConstraint(fields=("runtime", "name"), name="one_orphan_per_place_and_name"),)

    def __str__(self) -> str:
        return f"{self.runtime}: {self.name}"


class DataSize(models.Model):
    """How much room one kind of data takes on a host, as it was measured last."""

    host = models.CharField(max_length=100, blank=True, default="")
    """The host's name; empty for a database of its own server."""
    what = models.CharField(max_length=20)
    """``database``, ``journals`` and so on (``maintenance.data_sizes``)."""
    bytes = models.BigIntegerField(null=True, blank=True)
    """None: it could not be measured within its time, so it is unknown."""
    measured_at = models.DateTimeField(default=timezone.now)

    class Meta:
        db_table = "data_sizes"
        ordering = ("host", "what")
        constraints = (models.UniqueConstraint(fields=("host", "what"), name="one_size_per_host_and_kind"),)

    def __str__(self) -> str:
        return f"{self.what} on {self.host}"


class Backup(models.Model):
    """The newest backup that each host has recorded. What nobody recorded is unknown, not old."""

    host = models.CharField(primary_key=True, max_length=100)
    """Name of the host that it was taken on."""
    began_at = models.DateTimeField()
    """When the copy began: what was written later may not be in it."""
    completed_at = models.DateTimeField(default=timezone.now)
    place = models.CharField(max_length=1000, blank=True, default="")
    """Where it is, for staff."""

    class Meta:
        db_table = "backups"
        ordering = ("-began_at",)

    def __str__(self) -> str:
        return f"backup on {self.host}"


class RemovedWorktree(models.Model):
    """A worktree that maintenance has moved into the trash, and what became of it."""

    session_id = models.UUIDField(db_index=True)
    """The session that it was made for, which may be deleted."""
    host = models.CharField(max_length=100)
    """Name of the host that it was on."""
    path = models.CharField(max_length=4096)
    """Where it was, and where it is brought back to."""
    repository_path = models.CharField(max_length=4096)
    branch = models.CharField(max_length=255, blank=True, default="")
    """The session's branch, which stays."""
    head = models.CharField(max_length=64)
    """The commit that was checked out."""
    moved_at = models.DateTimeField(default=timezone.now)
    removed_at = models.DateTimeField(null=True, blank=True)
    """When its files were deleted; None: they are in the trash, or were brought back."""
    brought_back_at = models.DateTimeField(null=True, blank=True)
    kept_because = models.TextField(blank=True, default="")
    """Why it is still in the trash although its time is over; empty: nothing is in the way."""

    class Meta:
        db_table = "removed_worktrees"
        ordering = ("-moved_at", "-id")

    def __str__(self) -> str:
        return f"worktree of session {str(self.session_id)[:8]}"

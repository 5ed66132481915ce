"""The hosts that Kandev's processes run on, and these processes with their signs of life."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models

from executors_app.orm import ObjectField


class Role(models.TextChoices):
    """What a process of Kandev does."""

    WEB = "web", "Web server"
    SUPERVISOR = "supervisor", "Supervisor"
    WORKER = "worker", "Worker"


class Host(models.Model):
    """A machine or container that processes of Kandev have run on, by the name that its operator gave it."""

    name = models.CharField(max_length=100)
    machine = models.CharField(max_length=32, blank=True, default="", db_default="")
    """A digest of the machine's id, which tells hosts with the same name apart; empty if it has none."""
    first_seen_at = models.DateTimeField()

    class Meta:
        db_table = "hosts"
        ordering = ("name", "id")
        constraints = (models.UniqueConstraint(fields=("name", "machine"), name="one_host_per_name_and_machine"),)

    def __str__(self) -> str:
        return self.name


class HostProcess(models.Model):
    """A process of Kandev on a host: its signs of life, and what its machine had left at the last one."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    host = models.ForeignKey(Host, models.CASCADE, related_name="processes")
    place = models.CharField(max_length=32)
    """The id of the machine, its boot and pid namespace, as executions name it (``host_id``)."""
    role = models.CharField(max_length=16, choices=Role.choices)
    release = models.CharField(max_length=40)
    process = ObjectField(default=dict)
    """Its identity: pid, start time, boot id, pid namespace; ``has_wrong_key`` if its secret key does not fit, and
    ``backup_max_age``, its setting in seconds."""
    started_at = models.DateTimeField()
    beat_at = models.DateTimeField(db_index=True)
    stopping_at = models.DateTimeField(null=True, blank=True)
    """When it was told to end, and began to finish what it is doing; None for one that was killed."""
    ended_at = models.DateTimeField(null=True, blank=True)
    free_bytes = models.BigIntegerField(null=True, blank=True)
    """What the disk of the data directory has left."""
    load = models.FloatField(null=True, blank=True)
    """Average number of processes that wanted to run during the last minute."""
    open_files = models.IntegerField(null=True, blank=True)
    max_open_files = models.IntegerField(null=True, blank=True)

    class Meta:
        db_table = "host_processes"
        ordering = ("role", "-started_at")
        verbose_name_plural = "host processes"

    def __str__(self) -> str:
        return f"{self.get_role_display()} on {self.host}"


class BeforeShutdown(models.TextChoices):
    """What a host was before its machine began to go down, and is again when that is back."""

    IN_SERVICE = "in_service", "In service"
    CORDONED = "cordoned", "Cordoned"


class HostMaintenance(models.Model):
    """What a person has decided about a host. A host without a row is in service."""

    host = models.OneToOneField(Host, models.CASCADE, primary_key=True, related_name="maintenance")
    cordoned_at = models.DateTimeField(null=True, blank=True)
    """Since when it takes no new sessions."""
    draining_at = models.DateTimeField(null=True, blank=True)
    """Since when its sessions are stopped as soon as they are at rest; it is cordoned, too."""
    before_shutdown = models.CharField(
        max_length=16, choices=BeforeShutdown.choices, blank=True, default="", db_default=""
    )
    """What it is again once its machine is back; empty: no shutdown drains it, but perhaps a person's decision."""
    lost_at = models.DateTimeField(null=True, blank=True)
    """When a person declared it lost; None once it has returned and ended what it still ran."""
    by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+", db_constraint=False
    )
    """Who decided last; None: somebody at the command line."""

    class Meta:
        db_table = "host_maintenance"
        verbose_name_plural = "host maintenance"

    def __str__(self) -> str:
        return f"maintenance of {self.host}"

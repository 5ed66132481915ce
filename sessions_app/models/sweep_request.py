"""Somebody asks for a sweep; the supervisor carries it out."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.utils import timezone

from sessions_app.models.sweep import RecoverySweep


class SweepRequest(models.Model):
    """One wish for a sweep. Every supervisor that finds it undone may carry it out: a sweep may run twice."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+")
    sessions = models.JSONField(default=list, blank=True)
    """Ids of the sessions to look at; none: whatever claims to run."""
    dry_run = models.BooleanField(default=False)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    rows_done = models.PositiveIntegerField(default=0)
    rows_in_all = models.PositiveIntegerField(null=True, blank=True)
    """How far it is; None: nobody has begun."""
    done_at = models.DateTimeField(null=True, blank=True)
    sweep = models.ForeignKey(RecoverySweep, models.SET_NULL, null=True, blank=True, related_name="requests")
    """What came of it; a dry run leaves no sweep but its report."""
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

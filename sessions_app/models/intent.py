"""What somebody asked of a session and the lease holder has still to do (rules 8-11)."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.utils import timezone

from executors_app.json_fields import ObjectField
from sessions_app.models.scoping import TeamModel
from sessions_app.models.session import TaskSession


class IntentKind(models.TextChoices):
    """The kinds of order. A prompt's order is its ledger row itself."""

    START = "start"
    ANSWER = "answer"
    CANCEL = "cancel"
    STOP = "stop"
    CLOSE = "close"


OVERTAKING = (IntentKind.CLOSE, IntentKind.STOP, IntentKind.CANCEL, IntentKind.ANSWER)
"""Kinds that go before starts and prompts (rule 9)."""

IDLE = "idle"
"""Reason of a stop order's payload, and ``status_reason`` of the execution: put to sleep for idleness."""

QUEUED_FOR_CAPACITY = "queued_for_capacity"
"""Key of a start order's payload: its executor has as many live executions as it may have."""


class Intent(TeamModel):
    """One order. Written with the request that asks; done once, by whoever holds the lease."""

    team_path = "session__task__team"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    session = models.ForeignKey(TaskSession, models.CASCADE, related_name="intents")
    kind = models.CharField(max_length=10, choices=IntentKind.choices)
    payload = ObjectField(default=dict, blank=True)
    by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+")
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    claimed_generation = models.BigIntegerField(null=True, blank=True)
    done_at = models.DateTimeField(null=True, blank=True)
    outcome = models.CharField(max_length=64, blank=True, default="")

    class Meta(TeamModel.Meta):
        abstract = False
        db_table = "session_intents"
        ordering = ("created_at", "id")
        indexes = (models.Index(fields=("session",), name="intent_open", condition=models.Q(done_at__isnull=True)),)
        constraints = (
            models.UniqueConstraint(
                fields=("session",),
                condition=models.Q(kind="start", done_at__isnull=True),
                name="one_open_start_per_session",
            ),
        )

    def __str__(self) -> str:
        return f"{self.kind} of {str(self.session_id)[:8]}"

"""Requests to a session and their results.

Intents, prompts, permission requests and continuity receipts.
"""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.utils import timezone

from executors_app.orm import ObjectField
from sessions_app.accounts.team_scope import TeamModel
from sessions_app.kernel.models.session import TaskSession


class IntentKind(models.TextChoices):
    """Kinds of intent. A prompt needs none: its row is the request."""

    START = "start"
    ANSWER = "answer"
    CANCEL = "cancel"
    STOP = "stop"
    CLOSE = "close"
    SETTING = "setting"


OVERTAKING_KINDS = (IntentKind.CLOSE, IntentKind.STOP, IntentKind.CANCEL, IntentKind.ANSWER, IntentKind.SETTING)
"""Kinds that overtake starts and prompts, in this order."""

IDLE_REASON = "idle"
"""Reason in a stop intent's payload and ``status_reason`` of the execution: stopped because it was idle."""

DRAINED_REASON = "drained"
"""The same of an execution that was stopped for the maintenance of its host, and is resumed afterwards."""

QUEUED_FOR_CAPACITY = "queued_for_capacity"
"""Key in a start intent's payload: the executor already runs as many agents as it may."""

REFUSED_BY_HOST = "refused_by_host"
"""Key in a start intent's payload: the name of the host that takes no new sessions."""

PLACEMENT_WAIT = "placement_wait"
"""Key in a start intent's payload: why no supervisor can carry it out, as sentences for the page."""

FITS = "fits"
"""Key in the payload of a start that waits for room in a pool: an object whose keys are the executors that fit."""

AGENT_AWAITED_SINCE = "agent_awaited_since"
"""Key in a start intent's payload: when the agent was asked to start; ISO 8601."""


class Intent(TeamModel):
    """A stored request. A web request commits it; the lease holder carries it out once."""

    team_path = "session__task__team"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    session = models.ForeignKey(TaskSession, models.CASCADE, related_name="intents")
    kind = models.CharField(max_length=10, choices=IntentKind.choices)
    payload = ObjectField(default=dict, blank=True)
    by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+")
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    agent_died_at = models.DateTimeField(null=True, blank=True, editable=False)
    """Of a start that nobody requested: when the agent died that it replaces; None if none did."""
    claimed_generation = models.BigIntegerField(null=True, blank=True)
    done_at = models.DateTimeField(null=True, blank=True)
    outcome = models.CharField(max_length=64, blank=True, default="")
    seconds = models.FloatField(null=True, blank=True, editable=False)
    """Of a successful start: from the agent's death, else the request, until one ran; None until maintenance stores it.
    """
    bucket = models.FloatField(null=True, blank=True, editable=False)
    """The bound in seconds of its bucket in ``kandev_resume_duration_seconds``; above the last one, ``seconds``."""

    class Meta(TeamModel.Meta):
        db_table = "session_intents"
        verbose_name, verbose_name_plural = "request to a session", "requests to sessions"
        ordering = ("created_at", "id")
        indexes = (
            models.Index(fields=("session",), name="intent_open", condition=models.Q(done_at__isnull=True)),
            models.Index(
                fields=("bucket", "seconds", "by"), name="intent_bucket", condition=models.Q(bucket__isnull=False)
            ),
            models.Index(
                fields=("outcome",),
                name="intent_without_bucket",
                condition=models.Q(kind="start", done_at__isnull=False, bucket__isnull=True),
            ),
        )
        constraints = (
            models.UniqueConstraint(
                fields=("session",),
                condition=models.Q(kind="start", done_at__isnull=True),
                name="one_open_start_per_session",
            ),
        )

    def __str__(self) -> str:
        return f"{self.kind} of {str(self.session_id)[:8]}"

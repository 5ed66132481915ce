"""Sweeps and requests for them, receipts, prepared histories, and the policies of teams."""

from __future__ import annotations

import uuid
from typing import Any

from django.conf import settings
from django.db import models
from django.db.models.functions import Coalesce
from django.utils import timezone

from executors_app.orm import ObjectField
from executors_app.wire.protocol import Code
from sessions_app.accounts.team_scope import TeamModel, TeamQuerySet
from sessions_app.kernel.models.session import TaskSession, choices
from sessions_app.kernel.rules.states import RunState
from sessions_app.recovery.rules.history import Injection
from sessions_app.recovery.rules.resumability import Policy
from sessions_app.recovery.rules.verification import ReceiptKind, Verified
from sessions_app.turns.models import Turn


class PreparedHistory(models.Model):
    """The history of one session, free of secrets; at most ``BUDGET_CHARS`` long, and deleted with the session.

    It is a cache: without the row, or with another ``version``, the history is built again before it is needed.
    """

    session = models.OneToOneField(TaskSession, models.CASCADE, primary_key=True, related_name="prepared_history")
    version = models.CharField(max_length=64)
    """Stands for the conversation, the known secrets and the rules that it was built from."""
    text = models.TextField()
    facts: models.JSONField[dict[str, Any]] = models.JSONField()
    """The other fields of the ``Injection``."""
    built_at = models.DateTimeField(default=timezone.now)

    class Meta:
        db_table = "prepared_histories"
        verbose_name_plural = "prepared histories"

    def __str__(self) -> str:
        return f"history of {self.session_id}"

    def to_injection(self) -> Injection:
        """Return the history as it is put before a prompt."""
        return Injection(text=self.text, **self.facts)


_NEVER = models.BigIntegerField.MAX_BIGINT
"""``next_start`` of the newest receipt."""


class ReceiptQuerySet(TeamQuerySet["ContinuityReceipt"]):
    """Queries for receipts."""

    def with_history(self) -> ReceiptQuerySet:
        """Add ``is_first``, whether the session had no receipt before, and ``said_before``, whether it had a turn."""
        same_session = models.Q(session=models.OuterRef("session"))
        receipts = ContinuityReceipt.objects.filter(same_session, created_at__lt=models.OuterRef("created_at"))
        turns = Turn.objects.filter(same_session, started_at__lt=models.OuterRef("created_at"))
        return self.annotate(is_first=~models.Exists(receipts), said_before=models.Exists(turns))

    def with_first_turn(self) -> ReceiptQuerySet:
        """Add ``first_turn_id``: the first turn of the agent that was brought up, None if it had none.

        A turn after the next start belongs to that start's receipt; a take-over of the running agent starts nothing.
        """
        same_session = models.Q(session=models.OuterRef("session"))
        later = ContinuityReceipt.objects.filter(same_session, after_seq__gt=models.OuterRef("after_seq"))
        next_start = later.exclude(kind=ReceiptKind.REATTACHED).order_by("after_seq").values("after_seq")[:1]
        turns = Turn.objects.filter(same_session, has_process=True, first_seq__gt=models.OuterRef("after_seq"))
        turns = turns.exclude(state=RunState.FAILED, reason=Code.AGENT_BUSY)  # the agent has refused it unread
        turns = turns.filter(first_seq__lte=models.OuterRef("next_start")).order_by("first_seq")
        receipts = self.annotate(next_start=Coalesce(models.Subquery(next_start), models.Value(_NEVER)))
        return receipts.annotate(first_turn_id=models.Subquery(turns.values("id")[:1]))


class ContinuityReceipt(TeamModel):
    """How one resume or take-over ended: the kind of continuity, and how it is proven."""

    team_path = "session__task__team"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    session = models.ForeignKey(TaskSession, models.CASCADE, related_name="receipts")
    kind = models.CharField(max_length=16, choices=choices(ReceiptKind))
    verified = models.CharField(max_length=16, choices=choices(Verified), default=Verified.NONE)
    strategy = models.CharField(max_length=16, blank=True, default="")
    reason = models.CharField(max_length=64, blank=True, default="")
    evidence = ObjectField(default=dict)
    launch_id = models.CharField(max_length=64, null=True, blank=True, unique=True)
    """The launch that it reports on; a launch has at most one receipt."""
    after_seq = models.BigIntegerField(default=0, editable=False)
    """The last event of the log before this receipt. It gives receipts their order, because a clock may be set back."""
    created_at = models.DateTimeField(auto_now_add=True)
    agent_type = models.CharField(max_length=64, blank=True, default="", editable=False)
    """The type of the session's agent; empty until maintenance has stored it."""

    objects = ReceiptQuerySet.as_manager()  # type: ignore[misc]

    class Meta(TeamModel.Meta):
        db_table = "continuity_receipts"
        ordering = ("-after_seq", "-created_at", "id")
        indexes = (models.Index(fields=("agent_type", "kind"), name="receipt_by_agent_type"),)

    def __str__(self) -> str:
        return f"{self.kind} ({self.verified})"


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


class TeamPolicy(models.Model):
    """The recovery settings of one team; what it leaves empty follows the deployment."""

    team = models.OneToOneField("auth.Group", models.CASCADE, primary_key=True, related_name="policy")
    policy = models.CharField(max_length=10, choices=choices(Policy), blank=True, default="")
    continue_prompts = models.BooleanField(null=True, blank=True)
    """Whether interrupted work continues automatically; None: the deployment's setting."""
    updated_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+", editable=False
    )
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        db_table = "team_policies"
        verbose_name_plural = "team policies"

    def __str__(self) -> str:
        return f"policy of team {self.team_id}"

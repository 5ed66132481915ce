"""How one resume ended, with the evidence (promise 4)."""

from __future__ import annotations

import uuid

from django.db import models

from executors_app.json_fields import ObjectField
from sessions_app.models.scoping import TeamModel
from sessions_app.models.session import TaskSession

RECEIPT_KINDS = ("reattached", "resumed", "loaded", "injected", "workspace_only", "fresh", "failed")
VERIFIED = ("same_process", "replay", "first_turn", "quoted", "unproven", "agent_echo", "none", "pending")


class ContinuityReceipt(TeamModel):
    """What kind of continuity the user got, and how we know."""

    team_path = "session__task__team"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    session = models.ForeignKey(TaskSession, models.CASCADE, related_name="receipts")
    kind = models.CharField(max_length=16, choices=[(k, k) for k in RECEIPT_KINDS])
    verified = models.CharField(max_length=16, choices=[(v, v) for v in VERIFIED], default="none")
    strategy = models.CharField(max_length=16, blank=True, default="")
    reason = models.CharField(max_length=64, blank=True, default="")
    evidence = ObjectField(default=dict)
    launch_id = models.CharField(max_length=64, null=True, blank=True, unique=True)
    """The start it tells of; one receipt a start."""
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta(TeamModel.Meta):
        abstract = False
        db_table = "continuity_receipts"
        ordering = ("-created_at", "id")

    def __str__(self) -> str:
        return f"{self.kind} ({self.proof})"

    @property
    def proof(self) -> str:
        """``verified`` as it is shown: earlier versions took any completed turn for an echo of the agent."""
        return "unproven" if self.verified == "agent_echo" else self.verified

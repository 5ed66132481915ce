"""What a team wants of its sessions after a restart, where a session does not say (design 7)."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from sessions_app.models.session import POLICIES


class TeamPolicy(models.Model):
    """The choices of one team; without a row, and where it says nothing, the deployment's hold."""

    team = models.OneToOneField("auth.Group", models.CASCADE, primary_key=True, related_name="policy")
    policy = models.CharField(max_length=10, choices=[(p, p) for p in POLICIES], blank=True, default="")
    continue_prompts = models.BooleanField(null=True, blank=True)
    """Whether interrupted work is continued by itself; None: as the deployment says."""
    updated_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+", editable=False
    )
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        db_table = "team_policies"
        verbose_name_plural = "team policies"

    def __str__(self) -> str:
        return f"policy of team {self.team_id}"

"""The ledger of prompts: what was asked of the agent, and how far it got (rules 12-16)."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from sessions_app.domain.states import PromptState
from sessions_app.models.scoping import TeamModel
from sessions_app.models.session import TaskSession


class Prompt(TeamModel):
    """One prompt; delivered at most once. A doubt is held and shown, never sent again by itself."""

    team_path = "session__task__team"
    KINDS = ("user", "continue", "wait", "retry", "check")

    session = models.ForeignKey(TaskSession, models.CASCADE, related_name="prompts")
    message_id = models.CharField(max_length=128)
    text = models.TextField()
    kind = models.CharField(max_length=10, choices=[(k, k) for k in KINDS], default="user")
    state = models.CharField(
        max_length=12, choices=[(s.value, s.value) for s in PromptState], default=PromptState.QUEUED
    )
    by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+")
    execution_id = models.CharField(max_length=64, blank=True, default="")
    journal_epoch = models.CharField(max_length=64, blank=True, default="")
    resent_as = models.OneToOneField("self", models.SET_NULL, null=True, blank=True, related_name="resend_of")
    continued_by = models.OneToOneField("self", models.SET_NULL, null=True, blank=True, related_name="continuation_of")
    attempt = models.PositiveSmallIntegerField(default=0)
    """Which try again of a turn that a passing error of the provider has failed; 0: it is none."""
    not_before = models.DateTimeField(null=True, blank=True)
    """When it may be sent; None: as soon as its turn comes."""
    trouble = models.CharField(max_length=64, blank=True, default="")
    """Of a try again: the code of the error before it."""
    trouble_message = models.TextField(blank=True, default="")
    """The provider's own words for it."""
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta(TeamModel.Meta):
        abstract = False
        db_table = "session_prompts"
        ordering = ("id",)
        constraints = (models.UniqueConstraint(fields=("session", "message_id"), name="one_prompt_per_message_id"),)
        indexes = (models.Index(fields=("session", "state"), name="prompt_by_state"),)

    def __str__(self) -> str:
        return f"prompt {self.message_id} ({self.state})"

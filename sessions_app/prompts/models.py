"""The prompts of sessions, and the files that belong to them."""

from __future__ import annotations

import hashlib
from typing import Final

from django.conf import settings
from django.db import models
from django.db.models.functions import Coalesce
from django.utils import timezone

from executors_app.orm import ListField
from sessions_app.accounts.team_scope import TeamModel
from sessions_app.kernel.models.session import TaskSession, choices
from sessions_app.kernel.rules.states import PromptKind, PromptState
from sessions_app.recovery.rules.resumability import MAX_CLOCK_SKEW


class Attachment(TeamModel):
    """The content of a file; ``Prompt.attachments`` says which prompts carry it, and under which name.

    A row of the database, so that it commits with its prompt, and is in every backup that has the prompt.
    """

    team_path = "session__task__team"

    session = models.ForeignKey(TaskSession, models.CASCADE, related_name="attachments")
    sha256 = models.CharField(max_length=64)
    """Of the content, in hexadecimal."""
    media_type = models.CharField(max_length=100)
    content = models.BinaryField()
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta(TeamModel.Meta):
        db_table = "session_attachments"
        ordering = ("id",)
        constraints = (models.UniqueConstraint(fields=("session", "sha256"), name="one_attachment_per_content"),)

    def __str__(self) -> str:
        return f"{self.media_type} {self.sha256[:8]}"


QUEUE_ORDER = (Coalesce("place", "id"), "id")
"""The order of queued prompts: as they were created, except for those that a user has moved."""
SENT_FIRST: Final = (PromptKind.CHECK, PromptKind.RETRY, PromptKind.CONTINUE)
"""Kinds of Kandev's own prompts that are sent before all others, in this order."""
LIMIT_PREFIX = "limit:"
"""Begins the message id of a prompt that goes on after a usage limit; the id of the suspension follows."""


def digest_of(text: str) -> str:
    """Return the SHA-256 of a text, in hexadecimal."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class Prompt(TeamModel):
    """A prompt, delivered at most once. If delivery is in doubt it is held for a person, never sent again."""

    team_path = "session__task__team"

    session = models.ForeignKey(TaskSession, models.CASCADE, related_name="prompts")
    message_id = models.CharField(max_length=128)
    text = models.TextField()
    attachments = ListField(default=list, blank=True)
    """Its files, each ``{name, media_type, size, sha256}``; their contents are rows of ``Attachment``."""
    kind = models.CharField(max_length=10, choices=choices(PromptKind), default=PromptKind.USER)
    state = models.CharField(max_length=12, choices=choices(PromptState), default=PromptState.QUEUED)
    by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+")
    execution_id = models.CharField(max_length=64, blank=True, default="")
    journal_epoch = models.CharField(max_length=64, blank=True, default="")
    resent_as = models.OneToOneField("self", models.SET_NULL, null=True, blank=True, related_name="resend_of")
    continued_by = models.OneToOneField("self", models.SET_NULL, null=True, blank=True, related_name="continuation_of")
    attempt = models.PositiveSmallIntegerField(default=0)
    """Number of this retry after a transient error of the provider; 0: not a retry."""
    not_before = models.DateTimeField(null=True, blank=True)
    """The earliest time to send it; None: as soon as the queue reaches it."""
    trouble = models.CharField(max_length=64, blank=True, default="")
    """For a retry: the code of the error that caused it."""
    trouble_message = models.TextField(blank=True, default="")
    """For a retry: the provider's own message."""
    text_version = models.PositiveIntegerField(default=1, db_default=1)
    """Counts the versions of the text: who edits it says which one they have seen."""
    first_digest = models.CharField(max_length=64, blank=True, default="", db_default="")
    """Of the text that its request sent, once that was edited: repeating the request still names this prompt."""
    edited_by = models.CharField(max_length=150, blank=True, default="", db_default="")
    """User name of whoever wrote its present text, once that was edited; ``by`` has queued it."""
    place = models.BigIntegerField(null=True, blank=True)
    """Where it is in the queue, once it was moved: the id of the prompt that was there before. None: its own id."""
    steered_into = models.CharField(max_length=128, blank=True, default="", db_default="")
    """The message_id of the turn into which it is, or was, handed while that turn runs; empty: it begins its own."""
    of_workflow = models.BooleanField(default=False, db_default=False)
    """Whether a step of a workflow has sent it: the step's record has its text, and the answer of its turn."""
    missed_turn = models.BooleanField(default=False, db_default=False)
    """Whether it was wanted in a running turn that has not taken it, so that it waits for its own."""
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta(TeamModel.Meta):
        db_table = "session_prompts"
        ordering = ("id",)
        constraints = (models.UniqueConstraint(fields=("session", "message_id"), name="one_prompt_per_message_id"),)
        indexes = (
            models.Index(fields=("session", "state"), name="prompt_by_state"),
            models.Index(fields=("state", "session"), name="prompt_of_state"),
            models.Index(fields=("session",), name="prompt_continue", condition=models.Q(kind="continue")),
        )

    def __str__(self) -> str:
        return f"prompt {self.message_id} ({self.state})"

    def has_begun_as(self, text: str) -> bool:
        """Return whether this was its text before anybody edited it."""
        if self.first_digest:
            return self.first_digest == digest_of(text)
        return self.text == text

    @property
    def queue_place(self) -> int:
        """Where it is in the queue: prompts with a smaller number are sent earlier."""
        if self.place is None:
            return int(self.pk)
        return self.place

    @property
    def predecessor(self) -> Prompt | None:
        """The prompt that this one gives again or continues; None if there is none."""
        return Prompt.objects.filter(models.Q(resent_as=self) | models.Q(continued_by=self)).first()

    @property
    def is_due(self) -> bool:
        """Whether it may be sent now; a time that only a wrong clock can have written counts as past."""
        now = timezone.now()
        return self.not_before is None or not now < self.not_before <= now + MAX_CLOCK_SKEW

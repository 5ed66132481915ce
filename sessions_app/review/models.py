"""Comments on the changes of a branch, and which versions of files a user has viewed."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models

from sessions_app.accounts.team_scope import TeamModel
from sessions_app.kernel.models.session import TaskSession, choices
from sessions_app.kernel.rules.states import PromptState
from sessions_app.prompts.models import Prompt
from sessions_app.review.rules.comments import MAX_EXCERPT, MAX_PATH, MAX_TEXT, Side


class ReviewComment(TeamModel):
    """What a member says about lines of a changed file. It waits until it is sent, with all others, as one prompt.

    Releases without this table may delete what it refers to, so the database does not enforce these references.
    """

    team_path = "session__task__team"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    session = models.ForeignKey(TaskSession, models.CASCADE, related_name="review_comments", db_constraint=False)
    author = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+", db_constraint=False
    )
    author_name = models.CharField(max_length=150, blank=True, default="")
    """User name of the author, also once the account is gone."""
    path = models.CharField(max_length=MAX_PATH)
    side = models.CharField(max_length=3, choices=choices(Side), default=Side.NEW)
    first_line = models.PositiveIntegerField()
    last_line = models.PositiveIntegerField()
    excerpt = models.TextField(max_length=MAX_EXCERPT, blank=True, default="")
    """The lines as their author saw them, with invisible characters made visible."""
    version = models.CharField(max_length=64, blank=True, default="")
    """The version of the changed file that the author saw; empty: not known."""
    text = models.TextField(max_length=MAX_TEXT)
    sent_with = models.CharField(max_length=128, blank=True, default="")
    """The message_id of the prompt that carries it; empty: none has."""
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta(TeamModel.Meta):
        db_table = "review_comments"
        ordering = ("created_at", "id")
        indexes = (models.Index(fields=("session", "created_at"), name="comment_of_session"),)

    def __str__(self) -> str:
        return f"comment on {self.path} ({str(self.id)[:8]})"


def with_prompt_states(comments: models.QuerySet[ReviewComment]) -> models.QuerySet[ReviewComment]:
    """Add ``prompt_state``: the state of the prompt that carries each comment; empty without one."""
    prompts = Prompt.objects.filter(session=models.OuterRef("session"), message_id=models.OuterRef("sent_with"))
    return comments.annotate(prompt_state=models.Subquery(prompts.values("state")[:1]))


def pending_comments(comments: models.QuerySet[ReviewComment]) -> models.QuerySet[ReviewComment]:
    """Return the comments that no prompt has taken to the agent, nor will: one that was withdrawn never does."""
    return with_prompt_states(comments).filter(
        models.Q(sent_with="") | models.Q(prompt_state=PromptState.WITHDRAWN.value)
    )


class ViewedVersion(TeamModel):
    """A version of a changed file that a user has marked as viewed."""

    team_path = "session__task__team"

    session = models.ForeignKey(TaskSession, models.CASCADE, related_name="viewed_versions", db_constraint=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+", db_constraint=False)
    version = models.CharField(max_length=64)
    viewed_at = models.DateTimeField(auto_now_add=True)

    class Meta(TeamModel.Meta):
        db_table = "viewed_versions"
        ordering = ("id",)
        constraints = (
            models.UniqueConstraint(fields=("session", "user", "version"), name="one_mark_per_viewed_version"),
        )
        indexes = (models.Index(fields=("viewed_at",), name="viewed_by_age"),)

    def __str__(self) -> str:
        return f"viewed {self.version[:8]}"

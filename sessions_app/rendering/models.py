"""Results of rendering text, so that each text is read once. They can be computed again from the text at any time."""

from __future__ import annotations

from django.db import models

from sessions_app.accounts.team_scope import TeamModel
from sessions_app.kernel.models.session import TaskSession


class RenderedText(TeamModel):
    """The result of one operation on one text of a session, deleted together with the session."""

    team_path = "session__task__team"

    session = models.ForeignKey(TaskSession, models.CASCADE, related_name="rendered_texts")
    key = models.CharField(max_length=64)
    """A keyed hash of team, operation, text and versions of the renderer, in hexadecimal."""
    result = models.TextField()
    """JSON; ``null`` for a text that is too expensive."""
    size = models.PositiveIntegerField()
    """Characters of ``result``."""

    class Meta(TeamModel.Meta):
        db_table = "session_rendered_texts"
        ordering = ("id",)
        constraints = (models.UniqueConstraint(fields=("session", "key"), name="one_rendering_per_text"),)

    def __str__(self) -> str:
        return f"rendered text {self.key[:8]}"

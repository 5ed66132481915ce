"""The contents of files that prompts carry, each stored once in a session."""

from __future__ import annotations

from django.db import models

from sessions_app.accounts.team_scope import TeamModel
from sessions_app.models.session import TaskSession


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
        abstract = False
        db_table = "session_attachments"
        ordering = ("id",)
        constraints = (models.UniqueConstraint(fields=("session", "sha256"), name="one_attachment_per_content"),)

    def __str__(self) -> str:
        return f"{self.media_type} {self.sha256[:8]}"

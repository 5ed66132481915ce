"""What a user has seen of a session, and which sessions the user keeps at hand."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from sessions_app.kernel.models.session import TaskSession


class SessionMark(models.Model):
    """One user's marks on one session: the last message seen, and whether the session is pinned.

    Never evidence for anything: it says what a page has shown, and only the user's own lists read it. Releases without
    this table may delete what it refers to, so the database does not enforce these references.
    """

    session = models.ForeignKey(TaskSession, models.CASCADE, related_name="user_marks", db_constraint=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+", db_constraint=False)
    seen_seq = models.BigIntegerField(default=0, db_default=0)
    """The place in the log up to which a page has shown the conversation to the user."""
    pinned_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        db_table = "session_user_marks"
        constraints = (models.UniqueConstraint(fields=("user", "session"), name="one_mark_per_user_and_session"),)

    def __str__(self) -> str:
        return f"mark of {self.user_id} on session {self.session_id}"

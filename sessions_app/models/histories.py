"""The history that a session's next new agent would get, built once."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.utils import timezone

from sessions_app.domain.history import Injection
from sessions_app.models.session import TaskSession


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

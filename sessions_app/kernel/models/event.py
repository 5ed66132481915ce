"""The log of a session: append-only and without gaps; every page is built from it."""

from __future__ import annotations

from typing import Any

from django.db import models

from executors_app.orm import ObjectField
from sessions_app.accounts.team_scope import TeamModel
from sessions_app.kernel.models.session import TaskSession


class AppendOnlyError(Exception):
    """A line of a session's log cannot be changed."""


class SessionEvent(TeamModel):
    """One immutable line of a session's log; ``append_events`` gives each the next ``seq``, without gaps."""

    team_path = "session__task__team"

    session = models.ForeignKey(TaskSession, models.CASCADE, related_name="events")
    seq = models.BigIntegerField()
    name = models.CharField(max_length=64)
    payload = ObjectField(default=dict)
    at = models.DateTimeField()
    once = models.CharField(max_length=128, null=True, blank=True, unique=True)
    """A unique name of something that may be recorded only once, such as ``run.interrupted:<run id>``."""

    class Meta(TeamModel.Meta):
        db_table = "session_events"
        ordering = ("session", "seq")
        constraints = (models.UniqueConstraint(fields=("session", "seq"), name="one_event_per_seq"),)

    def __str__(self) -> str:
        return f"{self.seq} {self.name}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Refuse to change a line; ``append_events`` writes new ones."""
        if not self._state.adding:
            raise AppendOnlyError(AppendOnlyError.__doc__)
        super().save(*args, **kwargs)

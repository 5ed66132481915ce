"""What a team wants done, and the repositories that staff opened to it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Final

from django.conf import settings
from django.db import models

from sessions_app.domain.states import TaskEnd, TaskState
from sessions_app.models.scoping import TeamModel

_ENDS: Final[Mapping[str, TaskEnd]] = {TaskState.DONE: "done", TaskState.CANCELLED: "cancelled"}


class Repository(TeamModel):
    """A git repository that staff opened to a team (rule 38)."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(max_length=200)
    team = models.ForeignKey("auth.Group", models.PROTECT, related_name="repositories")
    path = models.CharField(max_length=4096)
    default_branch = models.CharField(max_length=255, blank=True, default="")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta(TeamModel.Meta):
        abstract = False
        db_table = "repositories"
        verbose_name_plural = "repositories"
        ordering = ("name", "id")
        constraints = (models.UniqueConstraint(fields=("team", "path"), name="one_repository_per_team_and_path"),)

    def __str__(self) -> str:
        return self.name


class Task(TeamModel):
    """What a team wants done; its state follows from its sessions' except for DONE and CANCELLED."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    title = models.CharField(max_length=300)
    description = models.TextField(blank=True, default="")
    team = models.ForeignKey("auth.Group", models.PROTECT, related_name="tasks")
    repository = models.ForeignKey(Repository, models.PROTECT, null=True, blank=True, related_name="tasks")
    base_branch = models.CharField(max_length=255, blank=True, default="")
    state = models.CharField(max_length=20, choices=[(s.value, s.value) for s in TaskState], default=TaskState.TODO)
    idempotency_key = models.CharField(max_length=128, blank=True, default="", editable=False)
    """With which its maker asked for it, unique in its team; empty: without one."""
    asked = models.CharField(max_length=64, blank=True, default="", editable=False)
    """Digest of what was asked with that key."""
    archived_at = models.DateTimeField(null=True, blank=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta(TeamModel.Meta):
        abstract = False
        db_table = "tasks"
        ordering = ("-created_at", "id")
        constraints = (
            models.UniqueConstraint(
                fields=("team", "idempotency_key"),
                condition=~models.Q(idempotency_key=""),
                name="one_task_per_idempotency_key",
            ),
        )

    def __str__(self) -> str:
        return self.title

    @property
    def is_over(self) -> bool:
        """Archived, done or cancelled: none of its sessions is started any more."""
        return bool(self.end)

    @property
    def end(self) -> TaskEnd:
        """How the task ended; empty while work on it can continue. An archived task may also be done or cancelled."""
        if self.archived_at is not None:
            return "archived"
        return _ENDS.get(self.state, "")

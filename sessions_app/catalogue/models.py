"""The repositories of teams."""

from __future__ import annotations

import uuid

from django.db import models

from executors_app.models import check_labels
from sessions_app.accounts.team_scope import TeamModel


def new_store_id() -> str:
    """Return the name of a new repository's object store."""
    return str(uuid.uuid4())


class Repository(TeamModel):
    """A git repository that staff have opened to a team."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(max_length=200)
    team = models.ForeignKey("auth.Group", models.PROTECT, related_name="repositories")
    path = models.CharField(max_length=4096)
    default_branch = models.CharField(max_length=255, blank=True, default="")
    """Its main branch, as people know it; empty: unknown."""
    default_base = models.CharField(max_length=255, blank=True, default="", db_default="")
    """What new tasks start from unless they name a base; empty: what is checked out when a session starts."""
    executor_labels = models.CharField(max_length=500, blank=True, default="", db_default="", validators=[check_labels])
    """What an executor must offer for sessions that a pool places: names, separated by commas."""
    is_default = models.BooleanField(default=False, db_default=False)
    """Whether new tasks of the team use it unless they name another."""
    removed_at = models.DateTimeField(null=True, blank=True)
    """Since when no new task can use it; the tasks that it has stay. None: it is open to the team."""
    store_id = models.CharField(max_length=36, blank=True, default=new_store_id, db_default="", editable=False)
    """Name of the directory of its published objects, which no other row ever gets: another team may later be given
    the same path. Empty: release 1.0.0 wrote the row, and the directory is named after the path."""
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta(TeamModel.Meta):
        db_table = "repositories"
        verbose_name_plural = "repositories"
        ordering = ("name", "id")
        constraints = (
            models.UniqueConstraint(fields=("team", "path"), name="one_repository_per_team_and_path"),
            models.UniqueConstraint(
                fields=("team",), condition=models.Q(is_default=True), name="one_default_repository_per_team"
            ),
        )

    def __str__(self) -> str:
        return self.name

"""What the maintenance did, what it has still to remove, and what belongs to nobody; nothing is changed here."""

from __future__ import annotations

from django.contrib import admin

from executors_app.staff_admin import ReadOnly
from sessions_app.models import Chore, Leftover, MetricCount, Orphaned


@admin.register(Chore)
class ChoreAdmin(ReadOnly):
    """The chores and how their last runs went."""

    list_display = ("name", "ended_at", "went_well", "removed", "kept", "told")
    list_filter = (("failed_at", admin.EmptyFieldListFilter),)
    search_fields = ("name",)
    date_hierarchy = "ended_at"

    @admin.display(boolean=True, description="went well")
    def went_well(self, chore: Chore) -> bool:
        """Whether nothing went wrong last time."""
        return chore.failed_at is None

    @admin.display(description="said")
    def told(self, chore: Chore) -> str:
        """The first that it said."""
        return chore.said[0][:200] if chore.said else "–"


@admin.register(Leftover)
class LeftoverAdmin(ReadOnly):
    """What deleted sessions have left behind, until it is removed."""

    list_display = ("session_id", "deleted_at", "repository_path", "files_gone", "refs_gone")
    list_filter = ("files_gone", "refs_gone")
    search_fields = ("=session_id", "repository_path")
    date_hierarchy = "deleted_at"


@admin.register(Orphaned)
class OrphanedAdmin(ReadOnly):
    """What carries our marks and belongs to no session, as the last look found it (``manage.py orphans``)."""

    list_display = ("name", "runtime", "status", "execution_id", "first_seen_at", "last_seen_at")
    list_filter = ("runtime", "status")
    search_fields = ("name", "execution_id")
    date_hierarchy = "first_seen_at"


@admin.register(MetricCount)
class MetricCountAdmin(ReadOnly):
    """Parts of the numbers at ``/metrics`` that no other row knows."""

    list_display = ("name", "labels", "value", "part", "updated_at")
    list_filter = ("name",)
    search_fields = ("name", "labels")
    date_hierarchy = "updated_at"

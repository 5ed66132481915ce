"""Admin pages of maintenance and of the worker's queue."""

from __future__ import annotations

from django.contrib import admin
from django.template.defaultfilters import filesizeformat
from django_q.admin import FailAdmin, QueueAdmin, ScheduleAdmin, TaskAdmin
from django_q.models import Failure, OrmQ, Schedule, Success

from executors_app.staff_admin import ReadOnlyModelAdmin, RuntimeListFilter, runtime_column
from sessions_app.models import (
    Backup,
    Chore,
    DataSize,
    Leftover,
    Orphaned,
    RemovedWorktree,
)


@admin.register(Chore)
class ChoreAdmin(ReadOnlyModelAdmin):
    """Maintenance chores and their last runs."""

    list_display = ("name", "ended_at", "went_well", "removed", "kept", "told")
    list_filter = (("failed_at", admin.EmptyFieldListFilter),)
    search_fields = ("name",)
    date_hierarchy = "ended_at"

    @admin.display(boolean=True, description="succeeded")
    def went_well(self, chore: Chore) -> bool:
        """Return whether the last run succeeded."""
        return chore.failed_at is None

    @admin.display(description="message")
    def told(self, chore: Chore) -> str:
        """Return the first message of the last run."""
        if chore.said:
            return str(chore.said[0])[:200]
        return "–"


@admin.register(Leftover)
class LeftoverAdmin(ReadOnlyModelAdmin):
    """Files and refs of deleted sessions that are still to be removed."""

    list_display = ("session_id", "deleted_at", "repository_path", "files_gone", "refs_gone")
    list_filter = ("files_gone", "refs_gone")
    search_fields = ("=session_id", "repository_path")
    date_hierarchy = "deleted_at"


@admin.register(DataSize)
class DataSizeAdmin(ReadOnlyModelAdmin):
    """Disk space of each kind of data, as measured last on each host."""

    list_display = ("what", "host", "size", "measured_at")
    list_filter = ("host", "what")
    search_fields = ("host", "what")
    date_hierarchy = "measured_at"

    @admin.display(description="size", ordering="bytes")
    def size(self, row: DataSize) -> str:
        """Return the size in a readable unit."""
        if row.bytes is None:
            return "unknown"
        return filesizeformat(row.bytes)


@admin.register(Backup)
class BackupAdmin(ReadOnlyModelAdmin):
    """The newest backup that each host has recorded (``deploy/back-up``, ``manage.py record_backup``)."""

    list_display = ("host", "began_at", "completed_at", "place")
    search_fields = ("host", "place")
    date_hierarchy = "began_at"


@admin.register(Orphaned)
class OrphanedAdmin(ReadOnlyModelAdmin):
    """Orphans that the last check found: marked as ours, but without a session (``manage.py orphans``)."""

    list_display = ("name", runtime_column, "status", "execution_id", "first_seen_at", "last_seen_at")
    list_filter = (("runtime", RuntimeListFilter), "status")
    search_fields = ("name", "execution_id")
    date_hierarchy = "first_seen_at"


@admin.register(RemovedWorktree)
class RemovedWorktreeAdmin(ReadOnlyModelAdmin):
    """Worktrees that maintenance has moved into the trash, and what became of them."""

    list_display = ("session_id", "host", "branch", "moved_at", "removed_at", "brought_back_at", "kept_because")
    list_filter = (("removed_at", admin.EmptyFieldListFilter), ("brought_back_at", admin.EmptyFieldListFilter))
    search_fields = ("=session_id", "branch", "path")
    date_hierarchy = "moved_at"


for _model in (Schedule, Success, Failure, OrmQ):
    admin.site.unregister(_model)


@admin.register(Schedule)
class ScheduledTaskAdmin(ReadOnlyModelAdmin, ScheduleAdmin):  # type: ignore[misc]
    """Schedules of the worker."""

    readonly_fields = ()


@admin.register(Success)
class SucceededTaskAdmin(ReadOnlyModelAdmin, TaskAdmin):  # type: ignore[misc]
    """Background jobs that succeeded."""

    date_hierarchy = "stopped"
    readonly_fields = ()


@admin.register(Failure)
class FailedTaskAdmin(ReadOnlyModelAdmin, FailAdmin):  # type: ignore[misc]
    """Background jobs that failed; they are retried automatically."""

    date_hierarchy = "stopped"
    readonly_fields = ()


@admin.register(OrmQ)
class QueuedTaskAdmin(ReadOnlyModelAdmin, QueueAdmin):  # type: ignore[misc]
    """Background jobs that are waiting for a worker."""

    hidden = ("payload",)
    readonly_fields = ("task_id", "name", "group", "func")

"""Admin of background work: maintenance, the worker's queue, sweeps and supervisors."""

from __future__ import annotations

from typing import Any, cast

from django.contrib import admin
from django.contrib.auth.models import User
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django_q.admin import FailAdmin, QueueAdmin, ScheduleAdmin, TaskAdmin
from django_q.models import Failure, OrmQ, Schedule, Success

from executors_app.staff_admin import Form, ReadOnlyModelAdmin
from sessions_app.admin.records import SessionRowAdmin
from sessions_app.models import (
    Chore,
    Leftover,
    MetricCount,
    Orphaned,
    RecoverySweep,
    Supervisor,
    SweepOutcome,
    SweepRequest,
)
from sessions_app.services.sweeps import request_sweep


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
        return chore.said[0][:200] if chore.said else "–"


@admin.register(Leftover)
class LeftoverAdmin(ReadOnlyModelAdmin):
    """Files and refs of deleted sessions that are still to be removed."""

    list_display = ("session_id", "deleted_at", "repository_path", "files_gone", "refs_gone")
    list_filter = ("files_gone", "refs_gone")
    search_fields = ("=session_id", "repository_path")
    date_hierarchy = "deleted_at"


@admin.register(Orphaned)
class OrphanedAdmin(ReadOnlyModelAdmin):
    """Orphans that the last check found: marked as ours, but without a session (``manage.py orphans``)."""

    list_display = ("name", "runtime", "status", "execution_id", "first_seen_at", "last_seen_at")
    list_filter = ("runtime", "status")
    search_fields = ("name", "execution_id")
    date_hierarchy = "first_seen_at"


@admin.register(MetricCount)
class MetricCountAdmin(ReadOnlyModelAdmin):
    """Stored parts of the counters at ``/metrics``."""

    list_display = ("name", "labels", "value", "part", "updated_at")
    list_filter = ("name",)
    search_fields = ("name", "labels")
    date_hierarchy = "updated_at"


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


def _outcomes_link(sweep_id: Any) -> SafeString:
    url = reverse("admin:sessions_app_sweepoutcome_changelist")
    return format_html('<a href="{}?sweep__id__exact={}">outcomes</a>', url, sweep_id)


@admin.register(RecoverySweep)
class RecoverySweepAdmin(ReadOnlyModelAdmin):
    """Sweeps."""

    list_display = ("started_at", "trigger", "examined", "counts", "duration_ms", "boot_id", "decided")
    list_filter = ("trigger",)
    search_fields = ("=id", "boot_id")
    date_hierarchy = "started_at"
    readonly_fields = ("decided",)

    @admin.display(description="outcomes")
    def counts(self, sweep: RecoverySweep) -> str:
        """Return the number of each outcome."""
        return ", ".join(f"{count} {kind}" for kind, count in sweep.outcomes.items() if count) or "no changes"

    @admin.display(description="sessions")
    def decided(self, sweep: RecoverySweep) -> SafeString:
        """Return a link to the sweep's outcomes."""
        return _outcomes_link(sweep.id)


@admin.register(SweepOutcome)
class SweepOutcomeAdmin(SessionRowAdmin):
    """What sweeps observed and decided for each session."""

    list_display = ("sweep", "session", "task", "runtime", "observed", "rule", "agent_action", "receipt_kind", "reason")
    list_filter = ("observed", "rule", "agent_action", "receipt_kind", "runtime")
    list_select_related = ("sweep", "session__task")
    search_fields = ("=sweep__id", *SessionRowAdmin.search_fields, "rule", "reason", "error_message")
    date_hierarchy = "sweep__started_at"
    ordering = ("-id",)


@admin.register(SweepRequest)
class SweepRequestAdmin(ReadOnlyModelAdmin):
    """Requested sweeps. Adding one requests a sweep of all live executions now."""

    list_display = ("created_at", "by", "dry_run", "scope", "done_at", "decided")
    list_filter = ("dry_run", ("done_at", admin.EmptyFieldListFilter))
    list_select_related = ("by",)
    search_fields = ("=id", "by__username")
    date_hierarchy = "created_at"

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Allow staff to request sweeps."""
        return self.admin_site.has_permission(request)

    def get_fields(self, request: HttpRequest, obj: Any = None) -> list[Any]:
        """Offer only ``dry_run`` for a new request."""
        return super().get_fields(request, obj) if obj else ["dry_run"]

    def save_model(self, request: HttpRequest, obj: SweepRequest, form: Form, change: bool) -> None:
        """Request the sweep, and wake the supervisor."""
        obj.id = request_sweep(cast(User, request.user), dry_run=obj.dry_run).id
        obj.refresh_from_db()

    @admin.display(description="sessions")
    def scope(self, asked: SweepRequest) -> str:
        """Return which sessions the sweep examines."""
        return str(len(asked.sessions)) if asked.sessions else "all live executions"

    @admin.display(description="result")
    def decided(self, asked: SweepRequest) -> str:
        """Return a link to the outcomes."""
        if asked.sweep_id:
            return _outcomes_link(asked.sweep_id)
        return "see the report" if asked.report else "–"


@admin.register(Supervisor)
class SupervisorAdmin(ReadOnlyModelAdmin):
    """Supervisors that are running, or ran recently."""

    list_display = ("boot_id", "host_id", "started_at", "beat_at", "swept_at")
    list_filter = ("host_id",)
    search_fields = ("boot_id", "host_id")
    date_hierarchy = "started_at"

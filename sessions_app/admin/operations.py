"""Admin of background work: maintenance, the worker's queue, sweeps and supervisors."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django_q.admin import FailAdmin, QueueAdmin, ScheduleAdmin, TaskAdmin
from django_q.models import Failure, OrmQ, Schedule, Success

from executors_app.staff_admin import Form, ReadOnlyModelAdmin
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
class LeftoverAdmin(ReadOnlyModelAdmin):
    """What deleted sessions have left behind, until it is removed."""

    list_display = ("session_id", "deleted_at", "repository_path", "files_gone", "refs_gone")
    list_filter = ("files_gone", "refs_gone")
    search_fields = ("=session_id", "repository_path")
    date_hierarchy = "deleted_at"


@admin.register(Orphaned)
class OrphanedAdmin(ReadOnlyModelAdmin):
    """What carries our marks and belongs to no session, as the last look found it (``manage.py orphans``)."""

    list_display = ("name", "runtime", "status", "execution_id", "first_seen_at", "last_seen_at")
    list_filter = ("runtime", "status")
    search_fields = ("name", "execution_id")
    date_hierarchy = "first_seen_at"


@admin.register(MetricCount)
class MetricCountAdmin(ReadOnlyModelAdmin):
    """Parts of the numbers at ``/metrics`` that no other row knows."""

    list_display = ("name", "labels", "value", "part", "updated_at")
    list_filter = ("name",)
    search_fields = ("name", "labels")
    date_hierarchy = "updated_at"


for _model in (Schedule, Success, Failure, OrmQ):
    admin.site.unregister(_model)


@admin.register(Schedule)
class ScheduledTaskAdmin(ReadOnlyModelAdmin, ScheduleAdmin):  # type: ignore[misc]
    """What is to be done when."""

    readonly_fields = ()


@admin.register(Success)
class SucceededTaskAdmin(ReadOnlyModelAdmin, TaskAdmin):  # type: ignore[misc]
    """What was done."""

    date_hierarchy = "stopped"
    readonly_fields = ()


@admin.register(Failure)
class FailedTaskAdmin(ReadOnlyModelAdmin, FailAdmin):  # type: ignore[misc]
    """What could not be done; it is tried again by itself."""

    date_hierarchy = "stopped"
    readonly_fields = ()


@admin.register(OrmQ)
class QueuedTaskAdmin(ReadOnlyModelAdmin, QueueAdmin):  # type: ignore[misc]
    """What waits for a worker."""

    hidden = ("payload",)
    readonly_fields = ("task_id", "name", "group", "func")


def _outcomes_link(sweep_id: Any) -> SafeString:
    url = reverse("admin:sessions_app_sweepoutcome_changelist")
    return format_html('<a href="{}?sweep__id__exact={}">what it decided</a>', url, sweep_id)


@admin.register(RecoverySweep)
class RecoverySweepAdmin(ReadOnlyModelAdmin):
    """The looks at everything that claims to run."""

    list_display = ("started_at", "trigger", "examined", "counts", "duration_ms", "boot_id", "decided")
    list_filter = ("trigger",)
    search_fields = ("=id", "boot_id")
    date_hierarchy = "started_at"
    readonly_fields = ("decided",)

    @admin.display(description="outcomes")
    def counts(self, sweep: RecoverySweep) -> str:
        """The outcomes that there were."""
        return ", ".join(f"{count} {kind}" for kind, count in sweep.outcomes.items() if count) or "nothing to do"

    @admin.display(description="sessions")
    def decided(self, sweep: RecoverySweep) -> SafeString:
        """The way to its rows."""
        return _outcomes_link(sweep.id)


@admin.register(SweepOutcome)
class SweepOutcomeAdmin(ReadOnlyModelAdmin):
    """What sweeps observed and decided for each session."""

    list_display = (
        "sweep",
        "session",
        "task",
        "runtime",
        "observed",
        "rule",
        "agent_action",
        "receipt_kind",
        "reason",
    )
    list_filter = ("observed", "rule", "agent_action", "receipt_kind", "runtime")
    list_select_related = ("sweep", "session__task")
    search_fields = ("=sweep__id", "=session__id", "session__task__title", "rule", "reason", "error_message")
    date_hierarchy = "sweep__started_at"
    ordering = ("-id",)

    @admin.display(ordering="session__task__title")
    def task(self, row: SweepOutcome) -> str:
        """The task of its session."""
        return str(row.session.task)


@admin.register(SweepRequest)
class SweepRequestAdmin(ReadOnlyModelAdmin):
    """Sweeps that somebody asked for. To add one is to ask for a sweep of everything, now."""

    list_display = ("created_at", "by", "dry_run", "scope", "done_at", "decided")
    list_filter = ("dry_run", ("done_at", admin.EmptyFieldListFilter))
    list_select_related = ("by",)
    search_fields = ("=id", "by__username")
    date_hierarchy = "created_at"

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Staff."""
        return self.admin_site.has_permission(request)

    def get_fields(self, request: HttpRequest, obj: Any = None) -> list[Any]:
        """Who asks says only whether it shall be a dry run."""
        return super().get_fields(request, obj) if obj else ["dry_run"]

    def save_model(self, request: HttpRequest, obj: SweepRequest, form: Form, change: bool) -> None:
        """Ask, and wake the supervisor."""
        obj.id = request_sweep(request.user, dry_run=obj.dry_run).id
        obj.refresh_from_db()

    @admin.display(description="sessions")
    def scope(self, asked: SweepRequest) -> str:
        """What was to be looked at."""
        return str(len(asked.sessions)) if asked.sessions else "whatever claims to run"

    @admin.display(description="result")
    def decided(self, asked: SweepRequest) -> str:
        """The way to what came of it."""
        if asked.sweep_id:
            return _outcomes_link(asked.sweep_id)
        return "in its report" if asked.report else "–"


@admin.register(Supervisor)
class SupervisorAdmin(ReadOnlyModelAdmin):
    """The supervisors that live or lived lately."""

    list_display = ("boot_id", "host_id", "started_at", "beat_at", "swept_at")
    list_filter = ("host_id",)
    search_fields = ("boot_id", "host_id")
    date_hierarchy = "started_at"

"""Sweeps, what they decided, who asked for them, and the supervisors that made them."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from executors_app.staff_admin import Form, ReadOnly
from sessions_app.models import RecoverySweep, Supervisor, SweepOutcome, SweepRequest
from sessions_app.services.sweeps import ask_for_sweep


def _outcomes(sweep_id: Any) -> SafeString:
    url = reverse("admin:sessions_app_sweepoutcome_changelist")
    return format_html('<a href="{}?sweep__id__exact={}">what it decided</a>', url, sweep_id)


@admin.register(RecoverySweep)
class RecoverySweepAdmin(ReadOnly):
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
        return _outcomes(sweep.id)


@admin.register(SweepOutcome)
class SweepOutcomeAdmin(ReadOnly):
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
class SweepRequestAdmin(ReadOnly):
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
        obj.id = ask_for_sweep(request.user, dry_run=obj.dry_run).id
        obj.refresh_from_db()

    @admin.display(description="sessions")
    def scope(self, asked: SweepRequest) -> str:
        """What was to be looked at."""
        return str(len(asked.sessions)) if asked.sessions else "whatever claims to run"

    @admin.display(description="result")
    def decided(self, asked: SweepRequest) -> str:
        """The way to what came of it."""
        if asked.sweep_id:
            return _outcomes(asked.sweep_id)
        return "in its report" if asked.report else "–"


@admin.register(Supervisor)
class SupervisorAdmin(ReadOnly):
    """The supervisors that live or lived lately."""

    list_display = ("boot_id", "host_id", "started_at", "beat_at", "swept_at")
    list_filter = ("host_id",)
    search_fields = ("boot_id", "host_id")
    date_hierarchy = "started_at"

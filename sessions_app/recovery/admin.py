"""Admin pages of sweeps, receipts, prepared histories and policies."""

from __future__ import annotations

from typing import Any, cast

from django.contrib import admin
from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from executors_app.staff_admin import (
    Form,
    ReadOnlyModelAdmin,
    RuntimeListFilter,
    StaffModelAdmin,
    runtime_column,
    words_filter,
)
from sessions_app.kernel.admin import SessionRowAdmin
from sessions_app.models import (
    ContinuityReceipt,
    PreparedHistory,
    RecoverySweep,
    SweepOutcome,
    SweepRequest,
    TeamPolicy,
)
from sessions_app.pages.labels import POLICY_CHOICES, POLICY_WORDS
from sessions_app.recovery.services.sweeps import request_sweep


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

    def view_on_site(self, sweep: RecoverySweep) -> str:
        """Return the sweep's page."""
        return reverse("sweep", args=[sweep.id])

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

    list_display = (
        "sweep",
        "session",
        "task",
        runtime_column,
        "observed",
        "rule",
        "agent_action",
        "receipt_kind",
        "reason",
    )
    list_filter = ("observed", "rule", "agent_action", "receipt_kind", "reason", ("runtime", RuntimeListFilter))
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

    def view_on_site(self, sweep_request: SweepRequest) -> str:
        """Return the request's page."""
        return reverse("sweep-request", args=[sweep_request.id])

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Allow staff to request sweeps."""
        return self.admin_site.has_permission(request)

    def get_fields(self, request: HttpRequest, obj: Any = None) -> list[Any]:
        """Offer only ``dry_run`` for a new request."""
        if obj:
            return super().get_fields(request, obj)
        return ["dry_run"]

    def save_model(self, request: HttpRequest, obj: SweepRequest, form: Form, change: bool) -> None:
        """Request the sweep, and wake the supervisor."""
        obj.id = request_sweep(cast(User, request.user), dry_run=obj.dry_run).id
        obj.refresh_from_db()

    @admin.display(description="sessions")
    def scope(self, sweep_request: SweepRequest) -> str:
        """Return which sessions the sweep examines."""
        if sweep_request.sessions:
            return str(len(sweep_request.sessions))
        return "all live executions"

    @admin.display(description="result")
    def decided(self, sweep_request: SweepRequest) -> str:
        """Return a link to the outcomes."""
        if sweep_request.sweep_id:
            return _outcomes_link(sweep_request.sweep_id)
        if sweep_request.report:
            return "see the report"
        return "–"


@admin.register(PreparedHistory)
class PreparedHistoryAdmin(SessionRowAdmin):
    """Which histories are ready for a new agent, without their texts."""

    list_display = ("built_at", "session", "task")
    date_hierarchy = "built_at"
    ordering = ("-built_at",)
    exclude = ("text", "version")

    def get_queryset(self, request: HttpRequest) -> QuerySet[PreparedHistory]:
        """Return the rows without reading the texts."""
        rows: QuerySet[PreparedHistory] = super().get_queryset(request)
        return rows.defer("text")


@admin.register(ContinuityReceipt)
class ContinuityReceiptAdmin(SessionRowAdmin):
    """Continuity receipts: how resumes ended, with the evidence."""

    list_display = ("created_at", "session", "task", "kind", "verified", "strategy", "reason")
    list_filter = ("kind", "verified", "strategy", "reason")
    search_fields = ("=id", "reason", "launch_id", *SessionRowAdmin.search_fields)
    date_hierarchy = "created_at"
    ordering = ("-created_at",)


@admin.register(TeamPolicy)
class TeamPolicyAdmin(StaffModelAdmin):
    """Restart policies of teams."""

    list_display = ("team", "policy_words", "continue_prompts", "updated_by", "updated_at")
    list_filter = (("policy", words_filter(POLICY_WORDS)), "continue_prompts")
    list_select_related = ("team", "updated_by")
    search_fields = ("team__name",)
    date_hierarchy = "updated_at"
    fields = ("team", "policy", "continue_prompts")

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        """Keep the team of an existing policy."""
        if obj:
            return ("team",)
        return ()

    def formfield_for_choice_field(self, db_field: Any, request: HttpRequest, **options: Any) -> Any:
        """Offer the policies as our pages name them."""
        if db_field.name == "policy":
            options["choices"] = POLICY_CHOICES
        return super().formfield_for_choice_field(db_field, request, **options)

    def view_on_site(self, policy: TeamPolicy) -> str:
        """Return the page with the team's policy."""
        return reverse("settings-team-policy", args=[policy.team_id])

    @admin.display(description="after a restart", ordering="policy")
    def policy_words(self, row: TeamPolicy) -> str:
        """Return the policy as our pages show it."""
        return POLICY_WORDS.get(row.policy, "–")

    def save_model(self, request: HttpRequest, obj: TeamPolicy, form: Any, change: bool) -> None:
        """Record who changed the policy."""
        obj.updated_by_id = request.user.pk
        super().save_model(request, obj, form, change)

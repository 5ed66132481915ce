"""Admin pages of the ledger of usage, of budgets and of prompts that wait for one."""

from __future__ import annotations

from django.contrib import admin

from executors_app.staff_admin import ReadOnlyModelAdmin
from sessions_app.kernel.admin import SessionRowAdmin
from sessions_app.models import BudgetHold, TurnUsage, UsageBudget


@admin.register(TurnUsage)
class TurnUsageAdmin(ReadOnlyModelAdmin):
    """What agents reported to have used in each turn."""

    list_display = ("ended_at", "turn_id", "team", "member", "agent_type", "tokens", "cost", "currency")
    list_filter = ("agent_type", "currency", ("tokens", admin.EmptyFieldListFilter))
    list_select_related = ("team", "member")
    search_fields = ("=turn_id", "=session_id", "=task_id")
    date_hierarchy = "day"
    ordering = ("-ended_at",)


@admin.register(UsageBudget)
class UsageBudgetAdmin(ReadOnlyModelAdmin):
    """The budgets of sessions and teams; they are changed on their pages."""

    list_display = ("updated_at", "id", "team", "session", "tokens", "cost", "currency", "updated_by")
    list_filter = ("currency", ("team", admin.EmptyFieldListFilter))
    list_select_related = ("team", "session", "updated_by")
    search_fields = ("=id", "=session__id", "team__name")
    date_hierarchy = "updated_at"
    ordering = ("-updated_at",)


@admin.register(BudgetHold)
class BudgetHoldAdmin(SessionRowAdmin):
    """Times in which a budget has held the prompts of a session back."""

    list_display = ("began_at", "id", "session", "task", "scope", "reason", "limit", "used", "ended_at", "end")
    list_filter = ("scope", "reason", "end", ("ended_at", admin.EmptyFieldListFilter))
    search_fields = ("=id", *SessionRowAdmin.search_fields)
    date_hierarchy = "began_at"
    ordering = ("-began_at",)

"""Admin page of the ledger of usage."""

from __future__ import annotations

from django.contrib import admin

from executors_app.staff_admin import ReadOnlyModelAdmin
from sessions_app.models import TurnUsage


@admin.register(TurnUsage)
class TurnUsageAdmin(ReadOnlyModelAdmin):
    """What agents reported to have used in each turn."""

    list_display = ("ended_at", "turn_id", "team", "member", "agent_type", "tokens", "cost", "currency")
    list_filter = ("agent_type", "currency", ("tokens", admin.EmptyFieldListFilter))
    list_select_related = ("team", "member")
    search_fields = ("=turn_id", "=session_id", "=task_id")
    date_hierarchy = "day"
    ordering = ("-ended_at",)

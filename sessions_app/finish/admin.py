"""Admin page of merges and pushes."""

from __future__ import annotations

from django.contrib import admin

from sessions_app.kernel.admin import SessionRowAdmin
from sessions_app.models import FinishIntent


@admin.register(FinishIntent)
class FinishIntentAdmin(SessionRowAdmin):
    """Merges and pushes: who confirmed what, and how it ended."""

    list_display = ("created_at", "id", "kind", "session", "task", "target_ref", "by", "state", "error_code")
    list_filter = ("kind", "state", "strategy", "error_code")
    list_select_related = ("session__task", "by")
    search_fields = ("=id", "=branch_commit", "=result_commit", "target_ref", *SessionRowAdmin.search_fields)
    date_hierarchy = "created_at"
    ordering = ("-created_at",)

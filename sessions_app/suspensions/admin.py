"""Admin page of suspensions."""

from __future__ import annotations

from django.contrib import admin

from sessions_app.kernel.admin import SessionRowAdmin
from sessions_app.models import Suspension


@admin.register(Suspension)
class SuspensionAdmin(SessionRowAdmin):
    """Suspended sessions: since when, until when, and how it ended."""

    list_display = ("began_at", "id", "session", "task", "reason", "wakes_at", "ended_at", "end")
    list_filter = ("reason", "end", ("ended_at", admin.EmptyFieldListFilter))
    search_fields = ("=id", "=run__id", *SessionRowAdmin.search_fields)
    date_hierarchy = "began_at"
    ordering = ("-began_at",)

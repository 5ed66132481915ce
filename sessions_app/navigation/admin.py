"""Admin page of users' marks on sessions."""

from __future__ import annotations

from django.contrib import admin

from executors_app.staff_admin import ReadOnlyModelAdmin
from sessions_app.models import SessionMark


@admin.register(SessionMark)
class SessionMarkAdmin(ReadOnlyModelAdmin):
    """What users have seen of sessions, and which ones they have pinned."""

    list_display = ("id", "user", "session", "seen_seq", "pinned_at")
    list_select_related = ("user", "session")
    search_fields = ("=session__id", "user__username")
    date_hierarchy = "pinned_at"
    ordering = ("-id",)

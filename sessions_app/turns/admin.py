"""Admin pages of turns and waits."""

from __future__ import annotations

from django.contrib import admin

from sessions_app.kernel.admin import SessionRowAdmin
from sessions_app.models import (
    Turn,
)


@admin.register(Turn)
class TurnAdmin(SessionRowAdmin):
    """Turns and waits."""

    list_display = ("started_at", "session", "task", "origin", "state", "wait_kind", "waited", "reason", "ended_at")
    list_filter = ("state", "origin", "wait_kind", "waited", "reason")
    search_fields = ("=id", "message_id", *SessionRowAdmin.search_fields)
    date_hierarchy = "started_at"
    ordering = ("-started_at",)

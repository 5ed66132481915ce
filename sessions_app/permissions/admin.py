"""Admin page of the requests of agents."""

from __future__ import annotations

from django.contrib import admin

from sessions_app.kernel.admin import SessionRowAdmin
from sessions_app.models import (
    PermissionRequest,
)


@admin.register(PermissionRequest)
class PermissionRequestAdmin(SessionRowAdmin):
    """Permissions that agents requested, their questions, and the answers; not what is on its way to an agent."""

    list_display = ("requested_at", "id", "session", "task", "kind", "state", "option_id", "settled_at")
    list_filter = ("kind", "state", "reason")
    exclude = ("sealed_answer",)
    search_fields = ("id", *SessionRowAdmin.search_fields)
    date_hierarchy = "requested_at"
    ordering = ("-requested_at",)

"""Admin page of background processes."""

from __future__ import annotations

from django.contrib import admin

from sessions_app.kernel.admin import SessionRowAdmin
from sessions_app.models import BackgroundWork


@admin.register(BackgroundWork)
class BackgroundWorkAdmin(SessionRowAdmin):
    """What turns of sessions have left running, as of its last report, and the policy for it."""

    list_display = ("reported_at", "session", "task", "count", "cpu_seconds", "policy")
    list_filter = ("policy",)
    date_hierarchy = "reported_at"
    ordering = ("-reported_at",)

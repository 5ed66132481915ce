"""Admin page of the supervisors."""

from __future__ import annotations

from django.contrib import admin

from executors_app.staff_admin import ReadOnlyModelAdmin
from sessions_app.models import (
    Supervisor,
)


@admin.register(Supervisor)
class SupervisorAdmin(ReadOnlyModelAdmin):
    """Supervisors that are running, or ran recently."""

    list_display = ("boot_id", "host_id", "started_at", "beat_at", "swept_at")
    list_filter = ("host_id",)
    search_fields = ("boot_id", "host_id")
    date_hierarchy = "started_at"

"""Admin page of the counters."""

from __future__ import annotations

from django.contrib import admin

from executors_app.staff_admin import ReadOnlyModelAdmin
from sessions_app.models import (
    MetricCount,
)


@admin.register(MetricCount)
class MetricCountAdmin(ReadOnlyModelAdmin):
    """Stored parts of the counters at ``/metrics``."""

    list_display = ("name", "labels", "value", "part", "updated_at")
    list_filter = ("name",)
    search_fields = ("name", "labels")
    date_hierarchy = "updated_at"

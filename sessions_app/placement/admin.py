"""The admin page of where repositories were seen."""

from __future__ import annotations

from django.contrib import admin

from executors_app.staff_admin import ReadOnlyModelAdmin
from sessions_app.models import RepositorySighting


@admin.register(RepositorySighting)
class RepositorySightingAdmin(ReadOnlyModelAdmin):
    """Which hosts have which repositories on their disks."""

    list_display = ("repository", "host", "is_present", "changed_at")
    list_select_related = ("repository", "host")
    list_filter = ("is_present", "host")
    search_fields = ("repository__name", "repository__path", "host__name")
    date_hierarchy = "changed_at"

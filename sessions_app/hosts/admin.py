"""Admin pages of hosts and their processes."""

from __future__ import annotations

from django.contrib import admin
from django.urls import reverse

from executors_app.staff_admin import ReadOnlyModelAdmin
from sessions_app.models import Host, HostMaintenance, HostProcess


@admin.register(Host)
class HostAdmin(ReadOnlyModelAdmin):
    """The hosts that Kandev's processes have run on."""

    list_display = ("name", "machine", "first_seen_at")
    search_fields = ("name",)
    date_hierarchy = "first_seen_at"

    def view_on_site(self, host: Host) -> str:
        """Return the page *System*."""
        return reverse("system")


@admin.register(HostProcess)
class HostProcessAdmin(ReadOnlyModelAdmin):
    """Web servers, supervisors and workers, with their last sign of life."""

    list_display = ("host", "role", "release", "started_at", "beat_at", "ended_at")
    list_select_related = ("host",)
    list_filter = ("role",)
    search_fields = ("host__name", "=id")
    date_hierarchy = "beat_at"
    ordering = ("-beat_at",)


@admin.register(HostMaintenance)
class HostMaintenanceAdmin(ReadOnlyModelAdmin):
    """What people have decided about hosts; the system page changes it."""

    list_display = ("host", "cordoned_at", "draining_at", "before_shutdown", "lost_at", "by")
    list_select_related = ("host", "by")
    list_filter = tuple((name, admin.EmptyFieldListFilter) for name in ("cordoned_at", "draining_at", "lost_at"))
    search_fields = ("host__name",)
    date_hierarchy = "cordoned_at"

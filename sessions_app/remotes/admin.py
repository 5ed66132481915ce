"""Admin page of remotes."""

from __future__ import annotations

from django.contrib import admin
from django.urls import reverse

from executors_app.staff_admin import ReadOnlyModelAdmin
from sessions_app.models import RepositoryRemote


@admin.register(RepositoryRemote)
class RepositoryRemoteAdmin(ReadOnlyModelAdmin):
    """Where branches are pushed to; changed on the settings page of the repository."""

    hidden = ("private_key", "token")
    list_display = ("repository", "address", "public_key", "confirmed_at", "tested_at", "test_code", "changed_by")
    list_filter = ("test_code",)
    list_select_related = ("repository", "changed_by")
    search_fields = ("=id", "address", "repository__name")
    date_hierarchy = "created_at"

    def view_on_site(self, remote: RepositoryRemote) -> str:
        """Return the page of the repository's remote."""
        return reverse("settings-repository-remote", args=[remote.repository_id])

"""Keys of the API and people's preferences; the pages where their owners change them are the settings."""

from __future__ import annotations

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from rest_framework.authtoken import admin as foreign
from rest_framework.authtoken.models import TokenProxy

from executors_app.staff_admin import ReadOnly
from sessions_app.models import ApiToken, Preferences

assert foreign  # noqa: S101 - it registers itself, and is empty: its keys are taken over
admin.site.unregister(TokenProxy)


@admin.register(ApiToken)
class ApiTokenAdmin(ReadOnly):
    """Keys of the API: whose, what for, until when. A key itself is known to nobody but who was given it."""

    actions = ("revoke",)
    hidden = ("secret_hash",)
    list_display = ("name", "user", "scope", "begins_with", "created_at", "expires_at", "last_used_at", "is_live")
    list_filter = ("scope", ("revoked_at", admin.EmptyFieldListFilter))
    list_select_related = ("user",)
    search_fields = ("name", "user__username", "begins_with")
    date_hierarchy = "created_at"

    @admin.display(boolean=True, description="live")
    def is_live(self, token: ApiToken) -> bool:
        """Whether it opens something."""
        return not token.is_over and token.user.is_active

    @admin.action(description="Revoke selected tokens")
    def revoke(self, request: HttpRequest, chosen: QuerySet[ApiToken]) -> None:
        """From now on they open nothing."""
        count = chosen.filter(revoked_at=None).update(revoked_at=timezone.now())
        messages.success(request, f"{count} tokens were revoked.")


@admin.register(Preferences)
class PreferencesAdmin(ReadOnly):
    """How people like to see the pages; they say so themselves."""

    list_display = ("user", "theme", "time_zone")
    list_filter = ("theme",)
    list_select_related = ("user",)
    search_fields = ("user__username",)

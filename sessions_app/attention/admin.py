"""Admin pages of the inbox."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.http import HttpRequest

from executors_app.staff_admin import ReadOnlyModelAdmin
from sessions_app.attention.services.wording import word_items
from sessions_app.kernel.admin import SessionRowAdmin, TeamPageMixin, session_page
from sessions_app.models import (
    AttentionItem,
    AttentionMark,
    Presence,
)


@admin.register(AttentionItem)
class AttentionItemAdmin(TeamPageMixin, ReadOnlyModelAdmin):
    """Inbox items, which are resolved automatically and never edited."""

    page_team = "session__task__team"
    list_display = ("created_at", "kind", "session", "task", "workflow", "what", "resolved_at", "resolution")
    list_select_related = ("session__task", "task", "workflow")
    list_filter = ("kind", ("resolved_at", admin.EmptyFieldListFilter), "resolution")
    search_fields = ("=id", "key", "what", *SessionRowAdmin.search_fields)
    date_hierarchy = "created_at"
    ordering = ("-created_at",)
    hidden = ("quoted", "worded", "worded_for")

    def page_of(self, item: Any) -> str:
        """Return the page of its session."""
        return session_page(item.session)

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """Return the list, whose items have their quotations."""
        shown = super().get_changelist_instance(request)
        rows = list(shown.result_list)
        word_items(rows)
        shown.result_list = rows
        return shown

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Return an item with its quotations."""
        found = super().get_object(request, object_id, from_field)
        if found is not None and request.method == "GET":  # others run in a transaction, and show nothing
            word_items([found])
        return found


@admin.register(AttentionMark)
class AttentionMarkAdmin(ReadOnlyModelAdmin):
    """Which users have seen or dismissed an item."""

    list_display = ("id", "item", "user", "acknowledged_at", "dismissed_at")
    list_select_related = ("item", "user")
    search_fields = ("item__key", "user__username")
    date_hierarchy = "acknowledged_at"
    ordering = ("-id",)


@admin.register(Presence)
class PresenceAdmin(ReadOnlyModelAdmin):
    """Which users have a session's page open; expired rows are past visits."""

    list_display = ("expires_at", "user", "session")
    list_select_related = ("user", "session")
    search_fields = ("=session__id", "user__username")
    date_hierarchy = "expires_at"
    ordering = ("-expires_at",)

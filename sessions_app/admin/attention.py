"""Admin of inbox items, notifications, webhooks and team policies."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from executors_app.staff_admin import ReadOnlyModelAdmin, StaffModelAdmin
from sessions_app.admin.records import SessionRowAdmin
from sessions_app.models import AttentionItem, AttentionMark, Presence, TeamPolicy


@admin.register(AttentionItem)
class AttentionItemAdmin(ReadOnlyModelAdmin):
    """Inbox items, which are resolved automatically and never edited."""

    list_display = ("created_at", "kind", "session", "task", "workflow", "what", "resolved_at", "resolution")
    list_select_related = ("session__task", "task", "workflow")
    list_filter = ("kind", ("resolved_at", admin.EmptyFieldListFilter), "resolution")
    search_fields = ("=id", "key", "what", *SessionRowAdmin.search_fields)
    date_hierarchy = "created_at"
    ordering = ("-created_at",)


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


@admin.register(TeamPolicy)
class TeamPolicyAdmin(StaffModelAdmin):
    """Restart policies of teams."""

    list_display = ("team", "policy", "continue_prompts", "updated_by", "updated_at")
    list_filter = ("policy", "continue_prompts")
    list_select_related = ("team", "updated_by")
    search_fields = ("team__name",)
    date_hierarchy = "updated_at"
    fields = ("team", "policy", "continue_prompts")

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        """Keep the team of an existing policy."""
        return ("team",) if obj else ()

    def save_model(self, request: HttpRequest, obj: TeamPolicy, form: Any, change: bool) -> None:
        """Record who changed the policy."""
        obj.updated_by_id = request.user.pk
        super().save_model(request, obj, form, change)

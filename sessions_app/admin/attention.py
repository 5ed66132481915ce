"""What needs somebody, and what was told of it outside the pages: read-only, but for what teams and users choose."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from executors_app.staff_admin import ReadOnlyModelAdmin, StaffModelAdmin
from sessions_app.admin.records import SessionRowAdmin
from sessions_app.models import (
    AttentionItem,
    AttentionMark,
    DeliveredItem,
    Delivery,
    NotificationSettings,
    Presence,
    TeamPolicy,
    Webhook,
)


@admin.register(AttentionItem)
class AttentionItemAdmin(ReadOnlyModelAdmin):
    """What needs or needed somebody; the backend settles it, nobody edits it."""

    list_display = ("created_at", "kind", "session", "task", "workflow", "what", "resolved_at", "resolution")
    list_select_related = ("session__task", "task", "workflow")
    list_filter = ("kind", ("resolved_at", admin.EmptyFieldListFilter), "resolution")
    search_fields = ("=id", "key", "what", *SessionRowAdmin.search_fields)
    date_hierarchy = "created_at"
    ordering = ("-created_at",)


@admin.register(AttentionMark)
class AttentionMarkAdmin(ReadOnlyModelAdmin):
    """Who has seen or dismissed what."""

    list_display = ("id", "item", "user", "acknowledged_at", "dismissed_at")
    list_select_related = ("item", "user")
    search_fields = ("item__key", "user__username")
    date_hierarchy = "acknowledged_at"
    ordering = ("-id",)


@admin.register(Presence)
class PresenceAdmin(ReadOnlyModelAdmin):
    """Who looks at which session; what has expired tells of the past."""

    list_display = ("expires_at", "user", "session")
    list_select_related = ("user", "session")
    search_fields = ("=session__id", "user__username")
    date_hierarchy = "expires_at"
    ordering = ("-expires_at",)


@admin.register(NotificationSettings)
class NotificationSettingsAdmin(ReadOnlyModelAdmin):
    """What users want to be told by e-mail; each chooses for themselves."""

    list_display = ("user", "email", "every", "only_mine", "minimum_share", "last_email_at")
    list_filter = ("email", "every", "only_mine")
    list_select_related = ("user",)
    search_fields = ("user__username",)
    date_hierarchy = "last_email_at"


@admin.register(Webhook)
class WebhookAdmin(ReadOnlyModelAdmin):
    """Webhooks of users and teams, without their secrets; made in the settings, switched off here, too."""

    list_display = ("created_at", "url", "user", "team", "enabled", "created_by")
    list_filter = ("enabled", ("team", admin.RelatedOnlyFieldListFilter))
    list_select_related = ("user", "team", "created_by")
    search_fields = ("=id", "url", "user__username", "team__name")
    date_hierarchy = "created_at"
    actions = ("switch_off",)
    hidden = ("secret",)

    @admin.action(description="Switch selected webhooks off")
    def switch_off(self, request: HttpRequest, queryset: Any) -> None:
        """They are called no more until their owners switch them on again."""
        count = queryset.filter(enabled=True).update(enabled=False)
        self.message_user(request, f"{count} webhook{'' if count == 1 else 's'} switched off.")


@admin.register(Delivery)
class DeliveryAdmin(ReadOnlyModelAdmin):
    """What was told outside the pages, and how far it got."""

    list_display = ("created_at", "channel", "user", "webhook", "state", "attempts", "next_attempt_at", "last_error")
    list_filter = ("channel", "state", "is_test")
    list_select_related = ("user", "webhook")
    search_fields = ("=id", "user__username", "webhook__url", "last_error")
    date_hierarchy = "created_at"
    ordering = ("-created_at",)


@admin.register(DeliveredItem)
class DeliveredItemAdmin(ReadOnlyModelAdmin):
    """Which item was told to whom."""

    list_display = ("id", "item", "target", "delivery")
    list_select_related = ("item", "delivery")
    search_fields = ("item__key", "target")
    ordering = ("-id",)


@admin.register(TeamPolicy)
class TeamPolicyAdmin(StaffModelAdmin):
    """What teams say of restarts."""

    list_display = ("team", "policy", "continue_prompts", "updated_by", "updated_at")
    list_filter = ("policy", "continue_prompts")
    list_select_related = ("team", "updated_by")
    search_fields = ("team__name",)
    date_hierarchy = "updated_at"
    fields = ("team", "policy", "continue_prompts")

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        """Of which team it is does not change."""
        return ("team",) if obj else ()

    def save_model(self, request: HttpRequest, obj: TeamPolicy, form: Any, change: bool) -> None:
        """Who said so."""
        obj.updated_by_id = request.user.pk
        super().save_model(request, obj, form, change)

"""Admin of notification settings, webhooks and deliveries: read-only, except that webhooks can be switched off."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from executors_app.staff_admin import ReadOnlyModelAdmin
from sessions_app.notifications.models import DeliveredItem, Delivery, NotificationSettings, Webhook


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

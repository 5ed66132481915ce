"""Admin of notification settings, webhooks, devices and deliveries: read-only, except that webhooks can be disabled."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from executors_app.staff_admin import ReadOnlyModelAdmin
from sessions_app.kernel.rules.wording import plural
from sessions_app.notifications.models import (
    DeliveredItem,
    Delivery,
    NotificationSettings,
    PushDevice,
    PushKey,
    Webhook,
)


@admin.register(NotificationSettings)
class NotificationSettingsAdmin(ReadOnlyModelAdmin):
    """Users' e-mail notification settings, which only they can change."""

    list_display = ("user", "email", "browser_kinds", "every", "only_mine", "minimum_share", "last_email_at")
    list_filter = ("email", "every", "only_mine")
    list_select_related = ("user",)
    search_fields = ("user__username",)
    date_hierarchy = "last_email_at"


@admin.register(Webhook)
class WebhookAdmin(ReadOnlyModelAdmin):
    """Webhooks of users and teams, without their secrets. Staff can disable them here."""

    list_display = ("created_at", "url", "user", "team", "enabled", "created_by")
    list_filter = ("enabled", ("team", admin.RelatedOnlyFieldListFilter))
    list_select_related = ("user", "team", "created_by")
    search_fields = ("=id", "url", "user__username", "team__name")
    date_hierarchy = "created_at"
    actions = ("switch_off",)
    hidden = ("secret",)

    @admin.action(description="Disable selected webhooks")
    def switch_off(self, request: HttpRequest, queryset: Any) -> None:
        """Disable webhooks until their owners enable them again."""
        count = queryset.filter(enabled=True).update(enabled=False)
        self.message_user(request, plural(count, "1 webhook disabled.", "{} webhooks disabled."))


@admin.register(PushDevice)
class PushDeviceAdmin(ReadOnlyModelAdmin):
    """Browsers that notifications are pushed to, without their addresses and keys."""

    list_display = ("created_at", "user", "name", "service")
    list_filter = ("service",)
    list_select_related = ("user",)
    search_fields = ("=id", "user__username", "name", "service")
    date_hierarchy = "created_at"
    hidden = ("endpoint", "endpoint_digest", "key", "auth", "sign_in", "signed_with")


@admin.register(PushKey)
class PushKeyAdmin(ReadOnlyModelAdmin):
    """Keys with which push services know this deployment; only their public parts."""

    list_display = ("created_at", "public_key")
    search_fields = ("public_key",)
    date_hierarchy = "created_at"
    hidden = ("private_key",)


@admin.register(Delivery)
class DeliveryAdmin(ReadOnlyModelAdmin):
    """E-mails, webhook calls and push messages, and their delivery state."""

    list_display = (
        "created_at",
        "channel",
        "user",
        "webhook",
        "device",
        "state",
        "attempts",
        "next_attempt_at",
        "last_error",
    )
    list_filter = ("channel", "state", "is_test")
    list_select_related = ("user", "webhook", "device")
    search_fields = ("=id", "user__username", "webhook__url", "last_error")
    date_hierarchy = "created_at"
    ordering = ("-created_at",)


@admin.register(DeliveredItem)
class DeliveredItemAdmin(ReadOnlyModelAdmin):
    """Which item was delivered to which target."""

    list_display = ("id", "item", "target", "delivery")
    list_select_related = ("item", "delivery")
    search_fields = ("item__key", "target")
    ordering = ("-id",)

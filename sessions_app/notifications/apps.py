"""The notifications app: e-mail, webhooks and their deliveries."""

from __future__ import annotations

from django.apps import AppConfig


class NotificationsConfig(AppConfig):
    """Configuration of the ``notifications`` app."""

    name = "sessions_app.notifications"
    label = "notifications"
    verbose_name = "Notifications"
    default_auto_field = "django.db.models.BigAutoField"

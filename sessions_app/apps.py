"""The app of tasks and sessions."""

from __future__ import annotations

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class SessionsAppConfig(AppConfig):
    """``sessions_app``."""

    name = "sessions_app"
    label = "sessions_app"
    verbose_name = "Sessions"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """After each migration, create the schedules."""
        from sessions_app.tasks import schedules  # noqa: PLC0415 - models load after the apps

        post_migrate.connect(schedules.ensure_schedules, sender=self)

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
        """After each migration, create the schedules and adopt content types that older code has recreated."""
        from sessions_app import moved_models  # noqa: PLC0415 - models load after the apps
        from sessions_app.tasks import schedules  # noqa: PLC0415

        post_migrate.connect(schedules.ensure_schedules, sender=self)
        post_migrate.connect(moved_models.adopt_old_content_types, sender=self)

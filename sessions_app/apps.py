"""The app of tasks and sessions."""

from __future__ import annotations

from django.apps import AppConfig
from django.db.models.signals import post_migrate
from django.urls import register_converter

from executors_app.machine.process import identity
from sessions_app.api.converters import NameConverter


class SessionsAppConfig(AppConfig):
    """``sessions_app``."""

    name = "sessions_app"
    label = "sessions_app"
    verbose_name = "Sessions"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the converter of URLs; after each migration, create the schedules.

        Raises OSError if this machine cannot be identified: nothing may run without knowing where it is.
        """
        identity.host_id()
        register_converter(NameConverter, "name")
        from sessions_app.worker import schedules  # noqa: PLC0415 - models load after the apps

        post_migrate.connect(schedules.ensure_schedules, sender=self)

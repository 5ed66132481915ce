"""The Django application of the places where agents run."""

from __future__ import annotations

from django.apps import AppConfig


class ExecutorsConfig(AppConfig):
    """Agent profiles, executors and the executions that they carry."""

    name = "executors_app"
    verbose_name = "Executors"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks."""
        from executors_app import checks  # noqa: F401, PLC0415

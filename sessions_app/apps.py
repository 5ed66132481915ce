"""The app of sessions: what a session is and how it lives on."""

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class SessionsAppConfig(AppConfig):
    """``sessions_app``."""

    name = "sessions_app"
    label = "sessions_app"
    verbose_name = "Sessions"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Take over the keys that others make, check new user names, and make schedules after migrations."""
        from sessions_app import foreign_tokens  # noqa: F401, PLC0415
        from sessions_app.services import user_names  # noqa: PLC0415
        from sessions_app.tasks import schedules  # noqa: PLC0415

        user_names.watch()
        post_migrate.connect(schedules.ensure, sender=self)

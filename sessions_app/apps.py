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
        from sessions_app.accounts import credentials, teams  # noqa: F401, PLC0415 - models come after apps
        from sessions_app.tasks import schedules  # noqa: PLC0415

        teams.connect_user_name_check()
        post_migrate.connect(schedules.ensure_schedules, sender=self)

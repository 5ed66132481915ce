"""The app of sessions: what a session is and how it lives on."""

from django.apps import AppConfig


class SessionsAppConfig(AppConfig):
    """``sessions_app``."""

    name = "sessions_app"
    label = "sessions_app"
    verbose_name = "Sessions"
    default_auto_field = "django.db.models.BigAutoField"

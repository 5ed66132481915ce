"""The accounts app: users, teams and their roles, API tokens, login links, preferences."""

from __future__ import annotations

from django.apps import AppConfig


class AccountsConfig(AppConfig):
    """Configuration of the ``accounts`` app."""

    name = "sessions_app.accounts"
    label = "accounts"
    verbose_name = "Accounts"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Connect the handlers that hash tokens created by REST framework and check user names."""
        from sessions_app.accounts import credentials, teams  # noqa: F401, PLC0415 - models load after the apps

        teams.connect_user_name_check()

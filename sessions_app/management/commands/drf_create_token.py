"""``manage.py drf_create_token USER``: an API token for a user, stored as a hash.

Replaces REST framework's command of this name, whose tokens are stored in clear text, without name, scope and expiry.
"""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from typing import Any, Final

from django.contrib.auth import get_user_model
from django.core.management import CommandError
from django.db import transaction

from sessions_app.accounts import credentials
from sessions_app.accounts.models import ApiToken
from sessions_app.kernel.services.errors import Conflict
from sessions_app.management.output import VisibleCommand
from sessions_app.management.startup import report_database_errors

NAME: Final = "Created by drf_create_token"


def _days(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= credentials.MAX_LIFETIME_DAYS):
        raise ArgumentTypeError(f"must be a whole number from 1 to {credentials.MAX_LIFETIME_DAYS}")
    return int(text)


class Command(VisibleCommand):
    """Print a new token."""

    help = "Create an API token for a user and print it. Only its hash is stored, so it cannot be shown again."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the user and the token's properties."""
        parser.add_argument("username", help="name of an active user")
        parser.add_argument("-r", "--reset", action="store_true", help="first revoke the user's tokens with this name")
        parser.add_argument("--name", default=NAME, help="name of the token (default: %(default)s)")
        parser.add_argument(
            "--scope", choices=ApiToken.Scope.values, default="write", help="scope of the token (default: %(default)s)"
        )
        parser.add_argument("--days", type=_days, help="days until it expires (default: never)")

    def handle(self, *args: Any, **options: Any) -> None:
        """Create the token. Exits with status 2 and one line if that is not possible."""
        with report_database_errors():
            self.stdout.write(self._make(options))

    @transaction.atomic
    def _make(self, options: dict[str, Any]) -> str:
        users, username, name = get_user_model(), options["username"], options["name"][:100]
        user = users.objects.filter(**{users.USERNAME_FIELD: username}, is_active=True).first()
        if user is None:
            raise CommandError(f"there is no active user {username!r}", returncode=2)
        if options["reset"]:
            credentials.revoke_tokens_named(user, name)
        try:
            _, key = credentials.create_token(user, name, options["scope"], options["days"])
        except Conflict as error:
            raise CommandError(error.message, returncode=2) from error
        return f"Generated token {key} for user {username}"

"""``manage.py drf_create_token USER``: a key of the API for somebody, kept as a hash (interfaces 3).

REST framework has a command of this name, whose keys are kept in clear and have neither name nor end.
"""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from typing import Any, Final

from django.contrib.auth import get_user_model
from django.core.management import BaseCommand, CommandError
from django.db import DatabaseError, transaction

from sessions_app.accounts import credentials
from sessions_app.accounts.models import ApiToken
from sessions_app.services.errors import Conflict

NAME: Final = "Made by drf_create_token"


def _days(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= credentials.MAX_LIFETIME_DAYS):
        raise ArgumentTypeError(f"a whole number from 1 to {credentials.MAX_LIFETIME_DAYS} is wanted")
    return int(text)


class Command(BaseCommand):
    """Prints a new key; it is shown this once."""

    help = "Make an API token for a user, and print it. It is kept as a hash, so it can be shown this once only."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """For whom, and what it may do."""
        parser.add_argument("username", help="the name of an active user")
        parser.add_argument("-r", "--reset", action="store_true", help="revoke the user's tokens of this name first")
        parser.add_argument("--name", default=NAME, help="what it is for (default: %(default)s)")
        parser.add_argument("--scope", choices=ApiToken.Scope.values, default="write", help="default: %(default)s")
        parser.add_argument("--days", type=_days, help="how long it lives (default: until it is revoked)")

    def handle(self, *args: Any, **options: Any) -> None:
        """Make the key; exit status 2 with one line where that cannot be."""
        try:
            self.stdout.write(self._make(options))
        except DatabaseError as error:
            raise CommandError(f"the database cannot be used: {str(error).splitlines()[0]}", returncode=2) from error

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

"""``manage.py login_link USER``: a way in for somebody who has no password (rule 42)."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management import BaseCommand, CommandError
from django.db import DatabaseError

from sessions_app.management.demo_data import create_login_url, local_address_hint


class Command(BaseCommand):
    """Prints a link that logs one user in, once."""

    help = "Print a one-time login link for a user; it works once, for ten minutes."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Who, and where the link leads."""
        parser.add_argument("user", help="the name of an active user")
        parser.add_argument("--port", type=int, default=8000, help="of the server (default: %(default)s)")

    def handle(self, *args: Any, user: str, port: int, **options: Any) -> None:
        """Mint the link; exit status 2 with one line for a user who cannot log in."""
        users = get_user_model()
        try:
            found = users.objects.filter(**{users.USERNAME_FIELD: user}, is_active=True).first()
            if found is None:
                raise CommandError(f"there is no active user {user!r}", returncode=2)
            link = create_login_url(found, port)
            self.stdout.write(link)
            if hint := local_address_hint(link, port):
                self.stderr.write(hint)  # what is on stdout is the link alone
        except DatabaseError as error:
            raise CommandError(f"the database cannot be used: {str(error).splitlines()[0]}", returncode=2) from error

"""``manage.py login_link USER``: a one-time login link, for example for a user without a password."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management import CommandError

from sessions_app.demo.demo_data import create_login_url, local_address_hint
from sessions_app.management.output import VisibleCommand
from sessions_app.management.startup import report_database_errors


class Command(VisibleCommand):
    """Print a link that logs a user in once."""

    help = "Print a login link for a user. It works once, within ten minutes."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the user and the port."""
        parser.add_argument("user", help="name of an active user")
        parser.add_argument(
            "--port", type=int, default=8000, help="port of the server in the link (default: %(default)s)"
        )

    def handle(self, *args: Any, user: str, port: int, **options: Any) -> None:
        """Create the link. Exits with status 2 and one line if the user cannot log in."""
        users = get_user_model()
        with report_database_errors():
            found = users.objects.filter(**{users.USERNAME_FIELD: user}, is_active=True).first()
            if found is None:
                raise CommandError(f"there is no active user {user!r}", returncode=2)
            link = create_login_url(found, port)
            self.stdout.write(link)
            if hint := local_address_hint(link, port):
                self.stderr.write(hint)  # stdout has only the link

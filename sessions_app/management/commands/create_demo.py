"""``manage.py create_demo``: something to look at on a fresh installation."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import BaseCommand, CommandError
from django.db import DatabaseError

from executors_app.errors import ExecutorError
from sessions_app.management.demo_data import create_demo_data, create_login_url, local_address_hint
from sessions_app.management.startup import DEMO_REPOSITORY, set_private_umask


class Command(BaseCommand):
    """Makes a team, a user, a repository, an agent and a task, once; prints a login link each time."""

    help = "Make a demo team, user, repository, agent and task, and print a one-time login link."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Where the link leads."""
        parser.add_argument("--port", type=int, default=8000, help="of the server (default: %(default)s)")

    def handle(self, *args: Any, port: int, **options: Any) -> None:
        """Make what is missing; exit status 2 with one line if that cannot be."""
        set_private_umask()
        try:
            user = create_demo_data(Path(settings.KANDEV_DATA_DIR) / DEMO_REPOSITORY)
            link = create_login_url(user, port)
        except (DatabaseError, ExecutorError, OSError) as error:
            raise CommandError(f"the demo cannot be made: {str(error).splitlines()[0]}", returncode=2) from error
        self.stdout.write(f"Log in as {user.get_username()} with this link (once, within ten minutes):\n  {link}")
        if hint := local_address_hint(link, port):
            self.stdout.write(hint)

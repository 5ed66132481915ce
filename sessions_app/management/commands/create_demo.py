"""``manage.py create_demo``: example data for a new installation."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import CommandError
from django.db import DatabaseError

from executors_app.wire.errors import ExecutorError
from sessions_app.demo.demo_data import create_demo_data, create_login_url, local_address_hint
from sessions_app.management.output import VisibleCommand
from sessions_app.management.startup import DEMO_REPOSITORY, set_private_umask


class Command(VisibleCommand):
    """Create the demo data that is missing, and print a new login link each time."""

    help = "Create a demo team, user, repository, agent, tasks and workflow, and print a one-time login link."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the port of the link."""
        parser.add_argument(
            "--port", type=int, default=8000, help="port of the server in the link (default: %(default)s)"
        )

    def handle(self, *args: Any, port: int, **options: Any) -> None:
        """Create the demo. Exits with status 2 and one line if that is not possible."""
        set_private_umask()
        try:
            user = create_demo_data(Path(settings.KANDEV_DATA_DIR) / DEMO_REPOSITORY)
            link = create_login_url(user, port)
        except (DatabaseError, ExecutorError, OSError) as error:
            raise CommandError(f"the demo cannot be created: {str(error).splitlines()[0]}", returncode=2) from error
        self.stdout.write(f"Log in as {user.get_username()} with this link (valid once, for ten minutes):\n  {link}")
        if hint := local_address_hint(link, port):
            self.stdout.write(hint)

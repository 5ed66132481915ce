"""``manage.py kandev_version``: print the version of Kandev. ``manage.py version`` prints Django's."""

from __future__ import annotations

from typing import Any

from sessions_app.management.output import VisibleCommand


class Command(VisibleCommand):
    """Print the version, without the database."""

    help = "Print the version of Kandev."
    requires_system_checks: list[str] = []
    requires_migrations_checks = False

    def handle(self, *args: Any, **options: Any) -> None:
        """Print it on one line."""
        self.stdout.write(self.get_version())

"""``manage.py record_backup``: record that a backup is complete, so that its age can be watched."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils import timezone

from sessions_app.hosts.heartbeats import host_name
from sessions_app.maintenance.backups import record_backup
from sessions_app.management.output import VisibleCommand
from sessions_app.management.startup import EXIT_COULD_NOT_RUN, check_database


class Command(VisibleCommand):
    """Record a backup."""

    help = (
        "Record that a backup of the database is complete. deploy/back-up does so itself; call it after backups that "
        "are taken in another way. Its age is a metric, and staff see in their inbox when it is too old."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options."""
        parser.add_argument(
            "--began", metavar="TIME", default="", help="when the copy began, as ISO 8601 with a zone; default: now"
        )
        parser.add_argument("--place", default="", help="where the backup is, for staff")

    def handle(self, *args: Any, **options: Any) -> None:
        """Record it. Exits with 2 if the time is not valid or the database cannot be used."""
        began_at = _parse(options["began"])
        check_database()
        if record_backup(host_name(), began_at, options["place"]):
            self.stdout.write(f"Recorded a backup of {began_at:%Y-%m-%d %H:%M:%S %Z}.")
        else:
            self.stdout.write("Nothing recorded: a newer backup of this host is recorded already.")


def _parse(text: str) -> datetime:
    now = timezone.now()
    if not text:
        return now
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise CommandError(f"{text} is not a time. Give it as 2026-01-31T03:00:00Z.", returncode=EXIT_COULD_NOT_RUN)
    if at > now:
        raise CommandError(f"{text} has not come yet. Check the clock.", returncode=EXIT_COULD_NOT_RUN)
    return at

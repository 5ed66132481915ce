"""``manage.py after_restore``: make a restored database safe where nobody could notice that it was (rule 37)."""

from __future__ import annotations

from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

from sessions_app.services import database_restore
from sessions_app.services.portable import record as portable_record

EXIT_COULD_NOT_RUN: Final = 2


class Command(BaseCommand):
    """Hold what is unfinished, stop every session, name the logs anew; to be called while Kandev is stopped."""

    help = "Treats the database as restored from an older copy: holds unfinished prompts and stops every session."
    requires_system_checks: list[str] = []

    def handle(self, *args: Any, **options: Any) -> None:
        """Make it safe; exit 2 with one line if that cannot be."""
        try:
            found = database_restore.make_restored_safe()
        except database_restore.ExporterRunning as error:
            raise CommandError(str(error), returncode=EXIT_COULD_NOT_RUN) from error
        except (DatabaseError, OSError) as error:
            reason = str(error).strip().splitlines()[0]
            raise CommandError(f"the database cannot be made safe: {reason}", returncode=EXIT_COULD_NOT_RUN) from error
        self.stdout.write(
            f"{found.stopped} sessions stopped, {found.held} prompts held; "
            f"{len(found.behind)} sessions lack lines of their log."
        )
        if found.missing:
            self.stdout.write(
                f"{len(found.missing)} sessions of the record are not in this database: "
                f"manage.py import_sessions {portable_record.record_directory()}"
            )

"""``manage.py after_restore``: make a database safe that was restored from a backup."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError
from django.db import DatabaseError

from sessions_app.kernel.rules.wording import plural
from sessions_app.management.output import VisibleCommand
from sessions_app.management.startup import EXIT_COULD_NOT_RUN, refuse_wrong_secret_key, report_database_errors
from sessions_app.portable import database_restore
from sessions_app.portable import record as portable_record


class Command(VisibleCommand):
    """Hold unfinished prompts, stop every session and rename the logs. Run it while Kandev is stopped."""

    help = "Make a database safe after it was restored from a backup: hold unfinished prompts and stop every session."
    requires_system_checks: list[str] = []

    def handle(self, *args: Any, **options: Any) -> None:
        """Make the database safe. Exits with status 2 and one line if that is not possible."""
        with report_database_errors():
            refuse_wrong_secret_key()
        try:
            found = database_restore.make_restored_safe()
        except database_restore.ExporterRunning as error:
            raise CommandError(str(error), returncode=EXIT_COULD_NOT_RUN) from error
        except (DatabaseError, OSError) as error:
            reason = str(error).strip().splitlines()[0]
            raise CommandError(f"the database cannot be made safe: {reason}", returncode=EXIT_COULD_NOT_RUN) from error
        self.stdout.write(
            f"{plural(found.stopped, '1 session', '{} sessions')} stopped, "
            f"{plural(found.held, '1 prompt', '{} prompts')} held; "
            f"{plural(len(found.behind), '1 session has', '{} sessions have')} gaps in their log."
        )
        if found.missing:
            self.stdout.write(
                f"{plural(len(found.missing), '1 session', '{} sessions')} of the portable record "
                f"{plural(len(found.missing), 'is', 'are')} not in this database. To import: "
                f"manage.py import_sessions {portable_record.record_directory()}"
            )

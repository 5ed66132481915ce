"""``manage.py after_restore``: make a database safe that was restored from a backup."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError
from django.db import DatabaseError, connection

from sessions_app.hosts.heartbeats import describe_living
from sessions_app.hosts.rules.life_signs import RUNS_FOR
from sessions_app.kernel.rules.wording import plural
from sessions_app.management.output import VisibleCommand
from sessions_app.management.startup import EXIT_COULD_NOT_RUN, refuse_wrong_secret_key, report_database_errors
from sessions_app.portable import database_restore
from sessions_app.portable import record as portable_record


class Command(VisibleCommand):
    """Hold unfinished prompts, stop every session and rename the logs. Run it while Kandev is stopped."""

    help = "Make a database safe after it was restored from a backup: hold unfinished prompts and stop every session."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add ``--check`` and ``--restored``."""
        modes = parser.add_mutually_exclusive_group()
        modes.add_argument(
            "--check", action="store_true", help="only say whether Kandev still runs with this database; change nothing"
        )
        modes.add_argument(
            "--restored",
            action="store_true",
            help="the database has just been replaced by a copy, whose signs of life are of the time of the copy",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Make the database safe. Exits with status 2 and one line if that is not possible."""
        if options["check"]:
            if connection.introspection.table_names():  # otherwise it is new, and nobody can have used it
                _refuse_living_processes()
            return
        with report_database_errors():
            refuse_wrong_secret_key()
        if not options["restored"]:
            _refuse_living_processes()
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


def _refuse_living_processes() -> None:
    """Raise CommandError with status 2 if a process of any host still uses this database, naming it."""
    with report_database_errors():
        living = describe_living()
    if living:
        raise CommandError(
            f"Kandev still runs: {', '.join(living)}. Stop it everywhere; a process that was killed on another host "
            f"counts as running for {RUNS_FOR.total_seconds():.0f} s",
            returncode=EXIT_COULD_NOT_RUN,
        )

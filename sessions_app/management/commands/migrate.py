"""``manage.py migrate``: Django's command, without checks of the code, and beside running processes.

Checks of the code import every page and the whole API, which takes as long as everything else when there is nothing to
migrate. ``check`` and the tests run them.
"""

from __future__ import annotations

from typing import Any, Final

from django.core.checks import Tags
from django.core.management.commands.migrate import Command as Migrate
from django.db import DatabaseError, connections

from sessions_app.kernel.database_errors import DATABASE_BUSY, classify_error
from sessions_app.management.startup import refuse_incompatible_database, report_database_errors

TRIES: Final = 10
LONGEST_PAUSE: Final = "2min"
"""PostgreSQL ends a transaction that pauses longer between two statements; others may pause for less than a lease."""


class Command(Migrate):
    """Migrate the database."""

    def check(self, *args: Any, **options: Any) -> None:
        """Check the database and the configuration of executors."""
        super().check(*args, **options | {"tags": [Tags.database, "executors"]})

    def handle(self, *args: Any, **options: Any) -> None:
        """Migrate; on PostgreSQL, retry a migration that lost a deadlock with a running process.

        A database with unknown migrations is refused, except to ``--prune`` them.

        Migrations lock tables in a different order, so one of them and a transaction of a running process may wait for
        each other. PostgreSQL then ends one of the two. Each migration is a transaction: what was undone is repeated.
        """
        if not options["prune"]:
            with report_database_errors():
                refuse_incompatible_database()
        connection = connections[options["database"]]
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute(f"SET idle_in_transaction_session_timeout = '{LONGEST_PAUSE}'")
        for left in reversed(range(TRIES)):
            try:
                super().handle(*args, **options)
                return
            except DatabaseError as error:
                is_conflict = connection.vendor == "postgresql" and classify_error(error) is DATABASE_BUSY
                if not is_conflict or not left:
                    raise
                self.stderr.write(f"A migration lost a deadlock with a running process; retrying: {error}")

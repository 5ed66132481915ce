"""What a command that writes asks of its database before it begins."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from django.core.management.base import CommandError
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor

COULD_NOT_RUN: Final = 2
"""Exit code of a command that has touched nothing (interfaces 1)."""


def check_database() -> None:
    """Refuse (CommandError, code 2) a database that cannot be reached or lacks migrations, touching nothing."""
    if connection.vendor == "sqlite" and not _has_content(Path(connection.settings_dict["NAME"])):
        raise CommandError("there is no database yet; run manage.py migrate", returncode=COULD_NOT_RUN)
    try:
        executor = MigrationExecutor(connection)
        missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
    except (DatabaseError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CommandError(f"the database cannot be reached: {reason}", returncode=COULD_NOT_RUN) from error
    if missing:
        raise CommandError(
            f"the database lacks {len(missing)} migrations; run manage.py migrate", returncode=COULD_NOT_RUN
        )


def _has_content(path: Path) -> bool:
    """Whether a file is there and was written to: an empty one is made at every start, so that nobody else can."""
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:
        return False

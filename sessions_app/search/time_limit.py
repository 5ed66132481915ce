"""The time that a search may take: what it costs, whoever types it decides."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from django.db import DatabaseError, connection, transaction

from sessions_app.kernel.database_threads import is_too_long, limited_job

SECONDS: Final = 2.0
"""After which the database gives up a search: what it costs, whoever types it decides."""


class SearchTooLong(Exception):
    """The database did not finish the search in time."""


@contextmanager
def limited_search(seconds: float = SECONDS) -> Iterator[None]:
    """Let the database give up the queries of the block after ``seconds``: SearchTooLong."""
    try:
        if connection.vendor == "postgresql":
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute("SELECT set_config('statement_timeout', %s, true)", [str(int(seconds * 1000))])
                yield
        else:
            with limited_job(connection, seconds):
                yield
    except DatabaseError as error:
        if is_too_long(error):
            raise SearchTooLong from error
        raise

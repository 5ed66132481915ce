"""``manage.py rebuild_search``: empty the index of the search, and fill it again."""

from __future__ import annotations

from typing import Any

from sessions_app.management.output import VisibleCommand
from sessions_app.management.startup import check_database
from sessions_app.search.rebuilding import empty_index, fill_index


class Command(VisibleCommand):
    """Build the index of the search again, beside running processes."""

    help = (
        "Empty the index of the search and fill it again from conversations and tasks, in short transactions. "
        "Kandev can run meanwhile; searches find what is indexed by then."
    )
    requires_system_checks: list[str] = []

    def handle(self, *args: Any, **options: Any) -> None:
        """Empty the index and fill it. Exits with 2 if the database cannot be used."""
        check_database()
        empty_index()
        documents = fill_index()
        self.stdout.write(f"texts in the index: {documents}")

"""The journal line about background processes."""

from __future__ import annotations

from executors_app.machine import crash_points
from sessions_app.background.services import record_processes
from sessions_app.stream.conversation import JournalLine, JournalUpdate


def report_processes(update: JournalUpdate, line: JournalLine) -> None:
    """Record the processes that run in the background."""
    record_processes(update.transaction, line)
    crash_points.reached("background.reported", update.transaction.session.id)

"""The hourly maintenance."""

from __future__ import annotations

from sessions_app.services.maintenance.chores import run_chores


def maintain() -> None:
    """Do all chores; what they did is on the page of the chores, in the log and in the metrics."""
    run_chores()

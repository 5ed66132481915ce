"""The hourly maintenance."""

from __future__ import annotations

from sessions_app.maintenance.chores import run_chores


def maintain() -> None:
    """Run all chores. What they did is on their page in the admin, in the log and in the metrics."""
    run_chores()

"""The hourly maintenance."""

from __future__ import annotations

from typing import Final

from sessions_app.maintenance.chores import run_chores

WITHIN: Final = 200.0
"""Seconds for all chores. The last one may overrun it, and the worker ends the job after 300."""


def maintain() -> None:
    """Run all chores. What they did is on their page in the admin, in the log and in the metrics."""
    run_chores(within=WITHIN)

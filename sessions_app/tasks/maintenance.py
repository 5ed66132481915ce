"""The hourly maintenance."""

from __future__ import annotations

from sessions_app.moved_models import adopt_old_content_types
from sessions_app.services.maintenance.chores import run_chores


def maintain() -> None:
    """Run all chores. What they did is on their page in the admin, in the log and in the metrics.

    While a release rolls out, old web processes may recreate content types of moved models after the migration.
    """
    run_chores()
    adopt_old_content_types()

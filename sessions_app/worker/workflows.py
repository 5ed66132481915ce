"""Start scheduled workflows."""

from __future__ import annotations

from django.utils import timezone

from sessions_app.workflows.services import schedules


def start_due() -> int:
    """Start the runs that are due; return the number of new ones."""
    return schedules.start_due_runs(timezone.now())
